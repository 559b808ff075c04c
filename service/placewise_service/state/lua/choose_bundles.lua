-- choose_bundles.lua: stores which bundles every replica is to use, unless another choice was made meanwhile.
-- KEYS    1 bundles (one key outside every cluster)
-- ARGV    1 seq that the caller saw (0 = none yet), 2 active, 3 previous, 4 shadow
-- Returns 1, or 0 where the stored seq is another
-- Cost    O(1)
local seq = tonumber(redis.call('HGET', KEYS[1], 'seq') or '0')
if seq ~= tonumber(ARGV[1]) then
  return 0
end
redis.call('HSET', KEYS[1], 'seq', string.format('%.0f', seq + 1),
  'active', ARGV[2], 'previous', ARGV[3], 'shadow', ARGV[4])
return 1
