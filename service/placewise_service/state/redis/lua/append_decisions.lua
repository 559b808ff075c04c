-- append_decisions.lua: appends to one of the cluster's logs. No event: the logs are no part of the view.
-- Includes: ring.
-- KEYS    1 meta, 2 the log, 3 its position exported, 4 its bytes, 5 its drops
-- ARGV    1 most entries to keep, 2 most bytes of entries to keep, 3 entries that were lost on the way here, then records
-- Returns the number of entries dropped before they were exported (all records, if the cluster does not exist)
-- Cost    O(records appended + entries dropped)
if redis.call('EXISTS', KEYS[1]) == 0 then
  return #ARGV - 3
end
if ARGV[3] ~= '0' then
  redis.call('INCRBY', KEYS[5], ARGV[3])
end
if #ARGV == 3 then
  return 0
end
local records = {}
for i = 4, #ARGV do
  records[i - 3] = ARGV[i]
end
return push(KEYS[2], KEYS[3], KEYS[4], KEYS[5], tonumber(ARGV[1]), tonumber(ARGV[2]), records)
