-- learn_overhead.lua: adds one measured overhead to the running mean of its kind. Includes: clock, event, rows, outcomes.
-- KEYS    1 meta, 2 events, 3 overheads, 4 outcomes, 5 row_sums, 6 overhead_times
-- ARGV    1 retain_s, 2 outcome id, 3 kind, 4 overhead in seconds, 5 seconds an outcome id is remembered
-- Returns {epoch, event}, event being {version, kind, body, args} | {} for a repeat | false if the cluster does not exist
-- Cost    O(log outcomes + log kinds)
if not exists then
  return false
end
row_sums_key = KEYS[5]
if not is_first(KEYS[4], ARGV[2], tonumber(ARGV[5])) then
  return {}
end
local old = row_of(KEYS[3], 'overheads', ARGV[3]) or {ARGV[3], 0, 0}
local count = old[2] + 1
local row = {ARGV[3], count, old[3] + (tonumber(ARGV[4]) - old[3]) / count}
save_row(KEYS[3], 'overheads', ARGV[3], row)
redis.call('ZADD', KEYS[6], now_s, ARGV[3])
return {epoch, append('overhead', cmsgpack.pack(row), '')}
