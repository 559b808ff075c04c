-- expire.lua: releases reservations past their time, by the server's clock. Includes: clock, event, holdings.
-- KEYS    1 meta, 2 events, 3 used, 4 jobs, 5 holds, 6 expiring, 7 reservations
-- ARGV    1 retain_s, 2 most jobs to release in one step (call again for the rest)
-- Returns {life, version, released, 0, events}; an event is {version, kind, body, args}
-- Cost    O(tasks released)
used_key = KEYS[3]
local late = redis.call('ZRANGEBYSCORE', KEYS[6], '-inf', string.format('%.6f', now_s), 'LIMIT', 0, ARGV[2])
for _, job in ipairs(late) do
  local held = cmsgpack.unpack(redis.call('HGET', KEYS[5], job))
  give_back_all(held[2], job)
  leave_reservation(KEYS[7], held[1], job)
  redis.call('HDEL', KEYS[4], job)
  redis.call('HDEL', KEYS[5], job)
  redis.call('ZREM', KEYS[6], job)
end
save_used()
local events = {}
if #late > 0 then
  events[1] = append('expired', cmsgpack.pack(late), '')
end
return {life or '', whole(version), #late, 0, events}
