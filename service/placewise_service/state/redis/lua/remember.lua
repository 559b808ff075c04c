-- remember.lua: keeps an answer unless there is one. Includes: clock, answers.
-- KEYS    1 answers, 2 answer_times
-- ARGV    1 request id, 2 answer, 3 ttl_s, 4 fingerprint or "", 5 outdated answer to replace, or ""
-- Returns {"repeated", the stored answer, expiry of its reservations or "0"} | {"reused"}
-- Cost    O(log answers)
local standing = recall(KEYS[1], KEYS[2], ARGV[1], ARGV[4], ARGV[5])
if standing then
  return standing
end
memorise(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[4], tonumber(ARGV[3]), '0')
return {'repeated', ARGV[2], '0'}
