# What the scripts beside this file need of the machine: packages, ports, processes, certificates. They set
# PROG (their name) and ROOT (the checkout) before they read it.

CACHE=${OUTHAUL_SERVICES_CACHE:-$ROOT/.services/cache}
MAVEN_PLUGIN=org.apache.maven.plugins:maven-dependency-plugin:3.6.1
# Below the range that the kernel hands to outgoing connections, so that a restart finds its port free.
FIRST_PORT=15000 PORT_COUNT=17000

say() { printf '%s: %s\n' "$PROG" "$*" >&2; }
die() { say "$*"; exit 1; }
is_root() { [ "$(id -u)" = 0 ]; }
# Debian keeps some daemons in sbin, which a user's PATH may lack.
tool() { command -v "$1" 2>/dev/null || { [ -x "/usr/sbin/$1" ] && echo "/usr/sbin/$1"; }; }
now_ms() { echo $(($(date +%s%N) / 1000000)); }

# ---- packages ---------------------------------------------------------------------------------------------------

# alone COMMAND...: in this shell, while no other process of this checkout installs anything. Neither apt nor Maven's
# local repository bears two at once.
alone() {
  mkdir -p "$CACHE"
  exec 9>"$CACHE/.lock"
  flock -w 1200 9 || die "another process keeps $CACHE/.lock"
  "$@" # not followed by `||`, which would switch `set -e` off in there
  exec 9>&-
}

# Installs the packages without letting Debian start a system-wide server or make PostgreSQL's own cluster.
apt_install() {
  command -v apt-get >/dev/null || die "please install by hand: $*"
  is_root || die "run as root, once: apt-get install --no-install-recommends $*"
  local policy=/usr/sbin/policy-rc.d cluster=/etc/postgresql-common/createcluster.d status=0 made=""
  if [ ! -e $policy ]; then made=1; printf '#!/bin/sh\nexit 101\n' >$policy; chmod 755 $policy; fi
  case " $* " in *" postgresql "*) mkdir -p $cluster; echo 'create_main_cluster = false' >$cluster/outhaul.conf ;; esac
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -y -qq -o DPkg::Lock::Timeout=300)
  say "installing $*"
  # The list of packages on a long-lived machine may name files that are gone: renew it, then try again.
  "${apt[@]}" install --no-install-recommends "$@" </dev/null >&2 ||
    { "${apt[@]}" update >&2 && "${apt[@]}" install --no-install-recommends "$@" </dev/null >&2; } || status=$?
  [ -z "$made" ] || rm -f $policy
  return $status
}

# ---- ports ------------------------------------------------------------------------------------------------------

port_open() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# pick_port [OFFSET]...: sets PORT to one that is free, as are those at the offsets from it.
pick_port() {
  local tries=100 offset
  while [ $tries -gt 0 ]; do
    tries=$((tries - 1))
    PORT=$((FIRST_PORT + RANDOM % PORT_COUNT))
    for offset in 0 "$@"; do port_open $((PORT + offset)) && continue 2; done
    return 0
  done
  die "found no free port"
}

# ---- processes --------------------------------------------------------------------------------------------------

started_at() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }

# Gone, or a zombie whose threads have all ended: such a process holds no port and no file any more.
dead() {
  [ -d "/proc/$1" ] || return 0
  [ "$(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -c1)" = Z ] && [ "$(find "/proc/$1/task" -mindepth 1 -maxdepth 1 2>/dev/null | wc -l)" -le 1 ]
}

# spawn FOLDER LOG PIDFILE COMMAND...: a process in a session of its own.
spawn() {
  local folder=$1 log=$2 file=$3 pid
  shift 3
  (cd "$folder" && exec setsid "$@" </dev/null >>"$log" 2>&1 9>&-) &
  pid=$!
  echo "$pid $(started_at "$pid")" >"$file"
  disown "$pid" 2>/dev/null || true
}

# The pid in a file of `spawn`, if that process is still the one that was started (a pid may be used again).
pid_in() {
  local pid at
  [ -s "$1" ] || return 1
  read -r pid at <"$1"
  [ "$(started_at "$pid")" = "$at" ] && ! dead "$pid" && echo "$pid"
}

# $1 and its descendants. A process may end while the list is made.
family() {
  cat /proc/[0-9]*/stat 2>/dev/null | sed -n 's/^\([0-9]*\) (.*) . \([0-9]*\) .*/\1 \2/p' | awk -v root="$1" '
    { children[$2] = children[$2] " " $1 }
    END { todo[n = 1] = root; for (i = 1; i <= n; i++) { print todo[i]; m = split(children[todo[i]], c); for (j = 1; j <= m; j++) todo[++n] = c[j] } }' || true
}

# await_gone PORT PID...: until the processes are gone and the port is free, 20 s at most.
await_gone() {
  local port=$1 pid left=400
  shift
  for pid in "$@"; do while ! dead "$pid" && [ $left -gt 0 ]; do sleep 0.05; left=$((left - 1)); done; done
  while port_open "$port" && [ $left -gt 0 ]; do sleep 0.05; left=$((left - 1)); done
}

# ---- certificates -----------------------------------------------------------------------------------------------

# issue_certificates FOLDER NAME...: FOLDER/ca.pem of a new authority, and NAME.key and NAME.pem by it, each good for
# 127.0.0.1 and localhost. The authority's key is thrown away.
issue_certificates() {
  local folder=$1 authority name status=0
  shift
  tool openssl >/dev/null || alone apt_install openssl
  authority=$(mktemp -d)
  printf 'basicConstraints=CA:FALSE\nsubjectAltName=DNS:localhost,IP:127.0.0.1\n' >"$authority/names"
  {
    openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj "/CN=Outhaul's test authority" -keyout "$authority/key" -out "$folder/ca.pem" &&
      for name in "$@"; do
        openssl req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout "$folder/$name.key" -out "$authority/request" &&
          openssl x509 -req -days 3650 -in "$authority/request" -CA "$folder/ca.pem" -CAkey "$authority/key" -CAcreateserial -CAserial "$authority/serial" \
            -extfile "$authority/names" -out "$folder/$name.pem" && chmod 600 "$folder/$name.key" || break
      done
  } >"$authority/log" 2>&1 || status=$?
  [ -s "$folder/${!#}.pem" ] || status=1
  [ $status = 0 ] || { cat "$authority/log" >&2; say "making certificates failed"; }
  rm -rf "$authority"
  return $status
}
