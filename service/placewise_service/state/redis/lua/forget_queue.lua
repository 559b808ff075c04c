-- forget_queue.lua: removes an unused queue, if nobody moved it since it was read. Includes: clock, event.
-- The event is a queue's state before its first question, number 0: an older replica shows that state.
-- KEYS    1 meta, 2 events, 3 queues, 4 queue_seqs
-- ARGV    1 retain_s, 2 queue, 3 expected seq, 4 record of the empty state
-- Returns {epoch, version} | {} if the seq differs | false if the cluster does not exist
-- Cost    O(1)
if not exists then
  return false
end
if redis.call('HGET', KEYS[4], ARGV[2]) ~= ARGV[3] then
  return {}
end
redis.call('HDEL', KEYS[3], ARGV[2])
redis.call('HDEL', KEYS[4], ARGV[2])
return {epoch, append('queue', ARGV[4], '')[1]}
