#!/usr/bin/env bash
# Makes the certificates of the TLS tests in the folder $1: ca, server (for broker.test), client, and other-ca, which
# signs nothing. Start name server and broker with
#   -Dtls.test.mode.enable=false -Dtls.server.certPath=$1/server.pem -Dtls.server.keyPath=$1/server.key
#   -Dtls.server.trustCertPath=$1/ca.pem -Dtls.server.authClient=true -Dtls.server.need.client.auth=require
# Needs openssl 1.1.1 or later.
set -euo pipefail

dir=${1:?give a folder}
mkdir -p "$dir"
cd "$dir"

authority() { # name, subject
  openssl req -x509 -newkey rsa:2048 -nodes -keyout "$1.key" -out "$1.pem" -days 3650 -subj "/CN=$2" \
    -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign 2>/dev/null
}

signed() { # name, subject, alternative names
  openssl req -newkey rsa:2048 -nodes -keyout "$1.raw" -out "$1.csr" -subj "/CN=$2" 2>/dev/null
  # Netty reads PKCS#8 only.
  openssl pkcs8 -topk8 -nocrypt -in "$1.raw" -out "$1.key"
  printf 'subjectAltName=%s\nbasicConstraints=CA:FALSE\n' "$3" >"$1.ext"
  openssl x509 -req -in "$1.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -days 3650 -extfile "$1.ext" -out "$1.pem" 2>/dev/null
  rm -f "$1.raw" "$1.csr" "$1.ext"
}

authority ca "test authority"
authority other-ca "another authority"
signed server broker.test DNS:broker.test
signed client client.test DNS:client.test
