# Writes inside, writes to $1, reads $2 and connects to the port $3. A shell that is built without /dev/tcp could connect to
# nothing, so that every way that there is is tried.
(echo x > inside) 2>/dev/null
(echo x > "$1") 2>/dev/null
cat "$2" 2>/dev/null
has() { command -v "$1" >/dev/null 2>&1; }
if has bash; then
  echo tried
  bash -c 'exec 3<>"/dev/tcp/127.0.0.1/$1"' bash "$3" 2>/dev/null && echo connected
fi
if has python3; then
  echo tried
  python3 -c 'import socket, sys; socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5)' "$3" 2>/dev/null && echo connected
fi
echo probed
