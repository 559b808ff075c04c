-- profile_subtask.lua: merges metrics into the row of a subtask kind. Includes: clock, event, rows.
-- KEYS    1 meta, 2 events, 3 profiles, 4 profile_times, 5 row_sums
-- ARGV    1 retain_s, 2 kind, 3 metrics (msgpack map)
-- Returns {epoch, version} | false if the cluster does not exist
-- Cost    O(metrics of the kind)
if not exists then
  return false
end
row_sums_key = KEYS[5]
local row = row_of(KEYS[3], 'profiles', ARGV[2]) or {}
for name, value in pairs(cmsgpack.unpack(ARGV[3])) do
  row[name] = value
end
save_row(KEYS[3], 'profiles', ARGV[2], row, true)
redis.call('ZADD', KEYS[4], now_s, ARGV[2])
return {epoch, append('profile', ARGV[3], ARGV[2])[1]}
