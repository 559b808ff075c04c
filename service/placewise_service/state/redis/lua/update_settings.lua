-- update_settings.lua: replaces a cluster's settings. Includes: clock, event.
-- KEYS    1 meta, 2 events, 3 nodes, 4 jobs, 5 holds
-- ARGV    1 retain_s, 2 id of the epoch to begin if none exists, 3 record, 4 "1" if the cluster's time is its host's
-- Returns {epoch, version, 1 if the cluster was created}
-- Cost    O(1)
local was_created = 0
if not exists then
  if not create(ARGV[2]) then
    return redis.error_reply('PWTORN records without their meta')
  end
  was_created = 1
end
redis.call('HSET', KEYS[1], 'settings', ARGV[3])
if ARGV[4] == '1' then
  redis.call('HSETNX', KEYS[1], 'host_s', '0')
else
  redis.call('HDEL', KEYS[1], 'host_s')
end
return {epoch, append('settings', ARGV[3], '')[1], was_created}
