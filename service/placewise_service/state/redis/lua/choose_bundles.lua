-- choose_bundles.lua: stores the bundles that every replica uses, unless somebody chose others meanwhile.
-- KEYS    1 bundles (one key outside every cluster), 2 their history (in the same slot)
-- ARGV    1 seq that the caller saw (0 = none yet), 2 active, 3 previous, 4 shadow, 5 to 7 their digests,
--         8 shadows of single clusters, and the policy of the shadow of the others, 9 active bundles of single
--         clusters, 10 canaries, 11 kill switches, 12 the change for the history ('' for none), 13 most changes there
-- Returns 1, or 0 if the stored seq differs
-- Cost    O(1)
-- Replicas of 0.1.0 store the names alone. So the digests carry the seq of their choice.
local seq = tonumber(redis.call('HGET', KEYS[1], 'seq') or '0')
if seq ~= tonumber(ARGV[1]) then
  return 0
end
local stored = string.format('%.0f', seq + 1)
redis.call('HSET', KEYS[1], 'seq', stored, 'active', ARGV[2], 'previous', ARGV[3], 'shadow', ARGV[4],
  'digests_of', stored, 'active_digest', ARGV[5], 'previous_digest', ARGV[6], 'shadow_digest', ARGV[7],
  'shadows', ARGV[8], 'actives', ARGV[9], 'canaries', ARGV[10], 'kills', ARGV[11])
if ARGV[12] ~= '' then
  redis.call('LPUSH', KEYS[2], ARGV[12])
  redis.call('LTRIM', KEYS[2], 0, tonumber(ARGV[13]) - 1)
end
return 1
