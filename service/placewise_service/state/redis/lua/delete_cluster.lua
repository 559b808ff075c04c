-- delete_cluster.lua: forgets a cluster. Its last event outlives it for a minute, so that every replica hears of it.
-- Includes: clock, event.
-- KEYS    1 meta, 2 events, then every other key of the cluster
-- ARGV    1 retain_s
-- Returns 1, or 0 if the cluster does not exist
-- Cost    O(1); memory is freed in the background
if not exists then
  return 0
end
append('deleted', '', '')
redis.call('EXPIRE', KEYS[2], 60)
redis.call('UNLINK', KEYS[1])
for i = 3, #KEYS do
  redis.call('UNLINK', KEYS[i])
end
return 1
