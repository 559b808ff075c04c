-- append_decisions.lua: appends to the decision log's ring. No event: the log is no part of the view.
-- KEYS    1 meta, 2 decisions, 3 exported
-- ARGV    1 most entries to keep, then records
-- Returns how many entries fell off that were never exported (all of these, where there is no such cluster)
-- Cost    O(records)
if redis.call('EXISTS', KEYS[1]) == 0 then
  return #ARGV - 1
end
for i = 2, #ARGV do
  redis.call('XADD', KEYS[2], '*', 'r', ARGV[i])
end
local surplus = redis.call('XLEN', KEYS[2]) - tonumber(ARGV[1])
if surplus <= 0 then
  return 0
end

local function parts(id)
  local ms, seq = string.match(id, '^(%d+)%-?(%d*)$')
  return tonumber(ms), tonumber(seq ~= '' and seq or '0')
end

local exported_ms, exported_seq = parts(redis.call('GET', KEYS[3]) or '0')
local lost = 0
for _, entry in ipairs(redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', surplus)) do
  local ms, seq = parts(entry[1])
  if ms > exported_ms or (ms == exported_ms and seq > exported_seq) then
    lost = lost + 1
  end
end
redis.call('XTRIM', KEYS[2], 'MAXLEN', ARGV[1])
return lost
