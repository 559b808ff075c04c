-- forget_profiles.lua: dates the profile rows in use, and removes profile and overhead rows that are idle for long.
-- Includes: clock, event, rows.
-- A profile's event merges an empty map, spelt in three bytes: an older replica keeps the row until it loads. An
-- overhead's event is a count of 0, which every replica takes for none.
-- KEYS    1 meta, 2 events, 3 profiles, 4 profile_times, 5 row_sums, 6 progress, 7 overheads, 8 overhead_times
-- ARGV    1 retain_s, 2 idle_s, 3 most rows of each key removed at once, then the kinds of profiles in use
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

-- One time for each row, and none without a row.
local function pair(rows, times)
  if redis.call('HLEN', rows) == redis.call('ZCARD', times) then
    return
  end
  for _, name in ipairs(redis.call('ZRANGE', times, 0, -1)) do
    if redis.call('HEXISTS', rows, name) == 0 then
      redis.call('ZREM', times, name)
    end
  end
  for _, name in ipairs(redis.call('HKEYS', rows)) do
    redis.call('ZADD', times, 'NX', now_s, name)
  end
end

local before = '(' .. string.format('%.17g', now_s - idle_s)
local events = {}

-- Removes the idle rows; `event` appends what tells of one.
local function forget(rows, times, kind, event)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', times, '-inf', before, 'LIMIT', 0, ARGV[3])) do
    redis.call('ZREM', times, name)
    if drop_row(rows, kind, name) == 1 then
      table.insert(events, event(name))
    end
  end
end

pair(KEYS[3], KEYS[4])
pair(KEYS[7], KEYS[8])
-- A time that is nearly right spares the write.
for i = 4, #ARGV do
  local used_s = redis.call('ZSCORE', KEYS[4], ARGV[i])
  if used_s and now_s - tonumber(used_s) > idle_s / 16 then
    redis.call('ZADD', KEYS[4], now_s, ARGV[i])
  end
end
forget(KEYS[3], KEYS[4], 'profiles', function(name)
  return append('profile', string.char(0xde, 0, 0), name)
end)
forget(KEYS[7], KEYS[8], 'overheads', function(name)
  return append('overhead', cmsgpack.pack({name, 0, 0}), '')
end)
return {epoch, events}
