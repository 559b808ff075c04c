-- recall.lua: the answer remembered under a request id. Writes nothing. Includes: clock, answers.
-- KEYS    1 answers, 2 answer_times
-- ARGV    1 request id, 2 fingerprint
-- Returns {"repeated", answer, expiry of its reservations or "0"} | {"reused"} | false if none exists
-- Cost    O(log answers)
return recall(KEYS[1], KEYS[2], ARGV[1], ARGV[2], '') or false
