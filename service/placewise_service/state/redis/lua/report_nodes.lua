-- report_nodes.lua: inserts or updates nodes; one event for all of them. Includes: clock, event.
-- KEYS    1 meta, 2 events, 3 nodes, 4 capacities, 5 used, 6 jobs, 7 holds
-- ARGV    1 retain_s, 2 id of the epoch to begin if none exists, 3 "1" to remove all other nodes, 4 event body,
--         then per node: id, record, capacity record (msgpack)
-- Returns {epoch, version, removed ids, 1 if the cluster was created}
-- Cost    O(nodes reported), and O(nodes of the cluster) with full
local was_created = 0
if not exists then
  if not create(ARGV[2]) then
    return redis.error_reply('PWTORN records without their meta')
  end
  was_created = 1
end
local removed, reported = {}, {}
for i = 5, #ARGV, 3 do
  reported[ARGV[i]] = true
  redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 1])
  redis.call('HSET', KEYS[4], ARGV[i], ARGV[i + 2])
end
if ARGV[3] == '1' then
  for _, node in ipairs(redis.call('HKEYS', KEYS[3])) do
    if not reported[node] then
      removed[#removed + 1] = node
      redis.call('HDEL', KEYS[3], node)
      redis.call('HDEL', KEYS[4], node)
    end
  end
end
local event = append('nodes', ARGV[4], #removed > 0 and cmsgpack.pack(removed) or '')
return {epoch, event[1], removed, was_created}
