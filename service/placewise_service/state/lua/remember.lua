-- remember.lua: keeps an answer unless there is one. Includes: clock, answers.
-- KEYS    1 answers, 2 answer_times
-- ARGV    1 request id, 2 answer, 3 ttl_s
-- Returns the answer that stands
-- Cost    O(log answers)
local answer = recall(KEYS[1], KEYS[2], ARGV[1])
if answer then
  return answer
end
memorise(KEYS[1], KEYS[2], ARGV[1], ARGV[2], tonumber(ARGV[3]))
return ARGV[2]
