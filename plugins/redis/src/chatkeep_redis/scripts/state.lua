-- State entries of a session or of a scope, in the order of their keys, from one instant.
--
-- KEYS  1 head, 2 order, 3 values: see commit.lua
-- ARGV  "keys" and the keys; or "range", lower and upper bound of the names, and how many at most, or -1

local head = redis.call('HMGET', KEYS[1], 'h', 'k')
if not head[1] then
  return {}
end
local names, more = {}, 0
if ARGV[1] == 'keys' then
  for number = 2, #ARGV do
    names[number - 1] = 'k' .. ARGV[number]
  end
else
  local limit = tonumber(ARGV[4])
  names = redis.call('ZRANGEBYLEX', KEYS[2], ARGV[2], ARGV[3], 'LIMIT', 0, limit < 0 and -1 or limit + 1)
  if limit >= 0 and #names > limit then
    names[#names] = nil
    more = 1
  end
end
local reply = { head[1], head[2], more }
for _, name in ipairs(names) do
  local key = string.sub(name, 2)
  local entry = redis.call('HMGET', KEYS[3], 'v' .. key, 'd' .. key)
  if entry[1] then
    reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = key, entry[1], entry[2]
  end
end
return reply
