-- look_up.lua: the holdings of some jobs now, and which of them have ended. Writes nothing. Includes: clock.
-- KEYS    1 jobs, 2 expiring, 3 progress, 4 ended, 5 meta
-- ARGV    job ids
-- Returns for each job that holds something {id, record, expiry or "0", progress or ""}, for each that ended {id}. An
--         expired reservation holds nothing.
-- Cost    O(jobs asked for)
local clock_s = tonumber(redis.call('HGET', KEYS[5], 'host_s') or now_s)
local found = {}
for _, job in ipairs(ARGV) do
  local expire_s = redis.call('ZSCORE', KEYS[2], job) or '0'
  local record = (expire_s == '0' or tonumber(expire_s) > clock_s) and redis.call('HGET', KEYS[1], job)
  if record then
    found[#found + 1] = {job, record, expire_s, redis.call('HGET', KEYS[3], job) or ''}
  else
    local forget_s = redis.call('ZSCORE', KEYS[4], job)
    if forget_s and tonumber(forget_s) > now_s then
      found[#found + 1] = {job}
    end
  end
end
return found
