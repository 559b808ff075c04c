-- last_events.lua: the last event of many clusters in one command, which costs readers less than one by one.
-- KEYS    meta of each cluster
-- Returns {epoch, id of the last event} of each; nil for both if the cluster does not exist or its meta is no hash
-- Cost    O(clusters)
local found = {}
for i, key in ipairs(KEYS) do
  local reply = redis.pcall('HMGET', key, 'life', 'last')
  found[i] = reply.err and {false, false} or reply
end
return found
