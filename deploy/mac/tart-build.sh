#!/bin/sh
# A build command for takt worker --exec on a Mac: it runs build.sh of the source in a new
# virtual machine, a clone of the image TART_IMAGE, which is deleted at the end. The image's
# user admin lets the key ~/.takt/tart in by ssh.
set -eu

image=${TART_IMAGE:-takt-base}
vm=takt-$TAKT_BUILD_ID-$TAKT_ATTEMPT
finish() {
	tart stop "$vm" --timeout 5 2>/dev/null || true
	tart delete "$vm" 2>/dev/null || true
}
trap finish EXIT
trap 'exit 1' TERM INT

output=$(dirname "$TAKT_OUTPUT")
tart clone "$image" "$vm"
set -- --dir "source:$TAKT_SOURCE" --dir "output:$output"
[ -z "${TAKT_CERTS-}" ] || set -- "$@" --dir "certs:$TAKT_CERTS:ro"
tart run --no-graphics "$@" "$vm" &

address=$(tart ip --wait 120 "$vm")
guest() {
	ssh -i "$HOME/.takt/tart" -o BatchMode=yes -o ConnectTimeout=5 -o LogLevel=ERROR \
		-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null "admin@$address" "$@"
}
tries=0
until guest true; do
	tries=$((tries + 1))
	[ $tries -lt 60 ] || exit 1
	sleep 2
done
shared='/Volumes/My Shared Files'
guest "cd '$shared/source' && TAKT_PLATFORM='$TAKT_PLATFORM' TAKT_CERTS='$shared/certs' \
	TAKT_OUTPUT='$shared/output/$(basename "$TAKT_OUTPUT")' sh ./build.sh"
