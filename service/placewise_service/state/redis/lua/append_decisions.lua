-- append_decisions.lua: appends to the decision log's ring. No event: the log is no part of the view.
-- KEYS    1 meta, 2 decisions, 3 exported, 4 decision_bytes
-- ARGV    1 most entries to keep, 2 most bytes of entries to keep, then records
-- Returns the number of entries dropped before they were exported (all records, if the cluster does not exist)
-- Cost    O(records appended + entries dropped)
if redis.call('EXISTS', KEYS[1]) == 0 then
  return #ARGV - 2
end
local added = 0
for i = 3, #ARGV do
  redis.call('XADD', KEYS[2], '*', 'r', ARGV[i])
  added = added + #ARGV[i]
end

local function parts(id)
  local ms, seq = string.match(id, '^(%d+)%-?(%d*)$')
  return tonumber(ms), tonumber(seq ~= '' and seq or '0')
end

local most, most_bytes = tonumber(ARGV[1]), tonumber(ARGV[2])
local count = redis.call('XLEN', KEYS[2])
local bytes = tonumber(redis.call('GET', KEYS[4]) or '0') + added
local exported_ms, exported_seq = parts(redis.call('GET', KEYS[3]) or '0')
local lost, first = 0, '-'

local function is_too_much()
  return count > most or (bytes > most_bytes and count > 1)
end

while is_too_much() do
  for _, entry in ipairs(redis.call('XRANGE', KEYS[2], first, '+', 'COUNT', 64)) do
    if not is_too_much() then
      break
    end
    local ms, seq = parts(entry[1])
    if ms > exported_ms or (ms == exported_ms and seq > exported_seq) then
      lost = lost + 1
    end
    count, bytes = count - 1, bytes - #entry[2][2]
    first = string.format('%.0f-%.0f', ms, seq + 1)
  end
end
if first ~= '-' then
  redis.call('XTRIM', KEYS[2], 'MINID', first)
end
redis.call('SET', KEYS[4], string.format('%.0f', bytes))
return lost
