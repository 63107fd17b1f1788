-- The head of a session, and records of one of its logs, from one instant.
--
-- KEYS  1 head, 2 order: see commit.lua
-- ARGV  nothing: the head alone; else
--       1 length of what is before the seq in a record's name, 2 lower and 3 upper bound of the names,
--       4 how many records at most, or -1, 5 "newest" to begin at the upper end, 6 "count" to tell how many more

local head = redis.call('HGETALL', KEYS[1])
if #head == 0 or not ARGV[1] then
  return { head }
end
local before, low, high, limit = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
local newest = ARGV[5] == 'newest'
local found
if newest then
  found = redis.call('ZREVRANGEBYLEX', KEYS[2], high, low, 'LIMIT', 0, limit)
else
  found = redis.call('ZRANGEBYLEX', KEYS[2], low, high, 'LIMIT', 0, limit)
end
local more = 0
if ARGV[6] == 'count' and limit >= 0 and #found == limit then
  local last = found[#found]
  if last and newest then
    high = '(' .. string.sub(last, 1, before + 8)
  elseif last then
    low = '(' .. last
  end
  more = redis.call('ZLEXCOUNT', KEYS[2], low, high)
end
return { head, found, more }
