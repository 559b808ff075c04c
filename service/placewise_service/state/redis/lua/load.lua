-- load.lua: all data of a view, at one version. Writes nothing.
-- KEYS    1 meta, 2 nodes, 3 jobs, 4 expiring, 5 progress, 6 queues, 7 overheads, 8 profiles, 9 row_sums
-- Returns {epoch, version, last event id, settings or "", then keys 2 to 8 as flat lists, the host's time or "", key 9
--         as such a list}, or false if the cluster does not exist
-- Cost    O(nodes + jobs): for a replica that starts or lost its place in the stream
local meta = redis.call('HMGET', KEYS[1], 'schema', 'life', 'version', 'last', 'settings', 'host_s')
if meta[1] and meta[1] ~= '1' then
  return redis.error_reply('PWSCHEMA ' .. meta[1])
end
if not meta[2] then
  return false
end
return {
  meta[2], meta[3], meta[4], meta[5] or '',
  redis.call('HGETALL', KEYS[2]), redis.call('HGETALL', KEYS[3]),
  redis.call('ZRANGE', KEYS[4], 0, -1, 'WITHSCORES'), redis.call('HGETALL', KEYS[5]),
  redis.call('HGETALL', KEYS[6]), redis.call('HGETALL', KEYS[7]), redis.call('HGETALL', KEYS[8]),
  meta[6] or '', redis.call('HGETALL', KEYS[9]),
}
