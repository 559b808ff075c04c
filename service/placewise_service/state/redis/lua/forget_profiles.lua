-- forget_profiles.lua: dates the profile rows in use, and removes rows that are idle for long.
-- Includes: clock, event, rows.
-- The event merges an empty map, spelt in three bytes: an older replica keeps the row until it loads.
-- KEYS    1 meta, 2 events, 3 profiles, 4 profile_times, 5 row_sums, 6 progress, 7 overheads
-- ARGV    1 retain_s, 2 idle_s, 3 most rows removed at once, then the kinds in use
-- Returns {epoch, {version, kind, body, args} of each row removed} | false if the cluster does not exist
-- Cost    O(kinds in use); O(rows) if rows and times, or rows and sums, differ in number, as after a write by a replica of 0.1.0
if not exists then
  return false
end
row_sums_key = KEYS[5]
local idle_s = tonumber(ARGV[2])
local keys = {profiles = KEYS[3], progress = KEYS[6], overheads = KEYS[7]}
if redis.call('HLEN', KEYS[5]) > redis.call('HLEN', KEYS[3]) + redis.call('HLEN', KEYS[6]) + redis.call('HLEN', KEYS[7]) then
  for _, field in ipairs(redis.call('HKEYS', KEYS[5])) do
    local kind, name = string.match(field, '^(%a+):(.*)$')
    if redis.call('HEXISTS', keys[kind], name) == 0 then
      redis.call('HDEL', KEYS[5], field)
    end
  end
end
if redis.call('HLEN', KEYS[3]) ~= redis.call('ZCARD', KEYS[4]) then
  for _, kind in ipairs(redis.call('ZRANGE', KEYS[4], 0, -1)) do
    if redis.call('HEXISTS', KEYS[3], kind) == 0 then
      redis.call('ZREM', KEYS[4], kind)
    end
  end
  for _, kind in ipairs(redis.call('HKEYS', KEYS[3])) do
    redis.call('ZADD', KEYS[4], 'NX', now_s, kind)
  end
end
-- A time that is nearly right spares the write.
for i = 4, #ARGV do
  local used_s = redis.call('ZSCORE', KEYS[4], ARGV[i])
  if used_s and now_s - tonumber(used_s) > idle_s / 16 then
    redis.call('ZADD', KEYS[4], now_s, ARGV[i])
  end
end
local before = '(' .. string.format('%.17g', now_s - idle_s)
local events = {}
for _, kind in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', before, 'LIMIT', 0, ARGV[3])) do
  redis.call('ZREM', KEYS[4], kind)
  if drop_row(KEYS[3], 'profiles', kind) == 1 then
    table.insert(events, append('profile', string.char(0xde, 0, 0), kind))
  end
end
return {epoch, events}
