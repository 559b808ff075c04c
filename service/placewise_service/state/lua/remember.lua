-- remember.lua: keeps an answer unless there is one. Includes: clock, answers.
-- KEYS    1 answers, 2 answer_times
-- ARGV    1 request id, 2 answer, 3 ttl_s
-- Returns {"repeated", the answer that stands, expiry of what it holds or "0"}
-- Cost    O(log answers)
local standing = recall(KEYS[1], KEYS[2], ARGV[1])
if standing then
  return standing
end
memorise(KEYS[1], KEYS[2], ARGV[1], ARGV[2], tonumber(ARGV[3]), '0')
return {'repeated', ARGV[2], '0'}
