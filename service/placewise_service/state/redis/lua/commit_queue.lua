-- commit_queue.lua: stores a queue's state if nobody else did since it was read. Includes: clock, event.
-- KEYS    1 meta, 2 events, 3 queues, 4 queue_seqs
-- ARGV    1 retain_s, 2 queue, 3 expected seq, 4 next seq, 5 record
-- Returns {epoch, version} | {} if the seq differs | false if the cluster does not exist
-- Cost    O(1)
if not exists then
  return false
end
if (redis.call('HGET', KEYS[4], ARGV[2]) or '0') ~= ARGV[3] then
  return {}
end
redis.call('HSET', KEYS[3], ARGV[2], ARGV[5])
redis.call('HSET', KEYS[4], ARGV[2], ARGV[4])
return {epoch, append('queue', ARGV[5], '')[1]}
