-- shared/answers.lua: answers remembered by request id, as {expiry of what the answer holds, answer}. Needs `now_s`.
-- Cost    O(log answers); a write removes at most 16 that are too old

-- {"repeated", answer, expiry of what it holds ("0": it holds nothing)}, or nil.
local function recall(answers_key, times_key, request_id)
  local until_s = redis.call('ZSCORE', times_key, request_id)
  local packed = until_s and tonumber(until_s) > now_s and redis.call('HGET', answers_key, request_id)
  if not packed then
    return nil
  end
  local held = cmsgpack.unpack(packed)
  return {'repeated', held[2], held[1]}
end

local function memorise(answers_key, times_key, request_id, answer, ttl_s, expire_s)
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', times_key, '-inf', now_s, 'LIMIT', 0, 16)) do
    redis.call('ZREM', times_key, old)
    redis.call('HDEL', answers_key, old)
  end
  redis.call('HSET', answers_key, request_id, cmsgpack.pack({expire_s, answer}))
  redis.call('ZADD', times_key, string.format('%.6f', now_s + ttl_s), request_id)
  redis.call('EXPIRE', answers_key, math.ceil(ttl_s) + 1)
  redis.call('EXPIRE', times_key, math.ceil(ttl_s) + 1)
end
