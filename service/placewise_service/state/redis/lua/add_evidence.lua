-- add_evidence.lua: adds what one process saw of a canary, and returns the sums of all processes.
-- KEYS    1 evidence of the canary (in the slot of the choice of bundles)
-- ARGV    1 ms until it is forgotten, then (field, count) pairs
-- Returns all fields with their sums
-- Cost    O(fields of the canary)
for i = 2, #ARGV, 2 do
  redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1])
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return redis.call('HGETALL', KEYS[1])
