-- profile_subtask.lua: merges metrics into the row of a subtask kind. Includes: clock, event.
-- KEYS    1 meta, 2 events, 3 profiles, 4 profile_times
-- ARGV    1 retain_s, 2 kind, 3 metrics (msgpack map)
-- Returns {epoch, version} | false if the cluster does not exist
-- Cost    O(metrics of the kind)
if not exists then
  return false
end
local packed = redis.call('HGET', KEYS[3], ARGV[2])
local row = packed and cmsgpack.unpack(packed) or {}
for name, value in pairs(cmsgpack.unpack(ARGV[3])) do
  row[name] = value
end
-- An empty Lua table would be packed as an array.
redis.call('HSET', KEYS[3], ARGV[2], next(row) == nil and string.char(0x80) or cmsgpack.pack(row))
redis.call('ZADD', KEYS[4], now_s, ARGV[2])
return {epoch, append('profile', ARGV[3], ARGV[2])[1]}
