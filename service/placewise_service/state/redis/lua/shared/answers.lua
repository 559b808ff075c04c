-- shared/answers.lua: answers remembered by request id, as {expiry of the answer's reservations, answer, fingerprint of
-- the question and the caller}. Needs `now_s`. Releases up to 0.1 wrote no fingerprint and read the first two values only:
-- as there, an answer without a fingerprint goes to every caller.
-- Cost    O(log answers); a write removes at most 16 expired ones

-- {"repeated", answer, expiry of its reservations ("0": none)} | {"reused"} if another question has the id
-- | nil if there is no answer, or only the outdated one, `over`.
local function recall(answers_key, times_key, request_id, fingerprint, over)
  local until_s = redis.call('ZSCORE', times_key, request_id)
  local packed = until_s and tonumber(until_s) > now_s and redis.call('HGET', answers_key, request_id)
  if not packed then
    return nil
  end
  local held = cmsgpack.unpack(packed)
  local asked = held[3] or ''
  if asked ~= '' and fingerprint ~= '' and asked ~= fingerprint then
    return {'reused'}
  end
  if over ~= '' and held[2] == over then
    return nil
  end
  return {'repeated', held[2], held[1]}
end

local function memorise(answers_key, times_key, request_id, answer, fingerprint, ttl_s, expire_s)
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', times_key, '-inf', now_s, 'LIMIT', 0, 16)) do
    redis.call('ZREM', times_key, old)
    redis.call('HDEL', answers_key, old)
  end
  redis.call('HSET', answers_key, request_id, cmsgpack.pack({expire_s, answer, fingerprint}))
  redis.call('ZADD', times_key, string.format('%.6f', now_s + ttl_s), request_id)
  redis.call('EXPIRE', answers_key, math.ceil(ttl_s) + 1)
  redis.call('EXPIRE', times_key, math.ceil(ttl_s) + 1)
end
