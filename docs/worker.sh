#!/usr/bin/env bash
# A worker of takt in shell and curl: worker.sh COMMAND
# COMMAND finds the source archive at $SOURCE and writes the file $OUTPUT.
set -euo pipefail
: "${TAKT_URL:?}" "${TAKT_API_KEY:?}" "${1:?a command}"
command=$1 id=${WORKER_ID:-shell-$(hostname)} token='' dir=$(mktemp -d) reply=$dir/reply
export SOURCE=$dir/source OUTPUT=$dir/output

# request METHOD PATH [CURL OPTION...] prints the status, 000 if nobody answers.
# The body is in $reply. What moves for a minute goes on; what stands still ends.
request() {
	curl -sS --connect-timeout 10 --speed-time 60 --speed-limit 1 -o "$reply" -w '%{http_code}' \
		-X "$1" -H "X-API-Key: $TAKT_API_KEY" "${@:3}" "$TAKT_URL$2" || true
}
json() { request POST "$1" -H 'Content-Type: application/json' -d "$2" "${@:3}"; }
member() { sed -n 's/.*"'"$1"'":"\{0,1\}\([^",}]*\).*/\1/p' "$reply"; }

register() {
	until [[ $(json /api/workers/register "{\"id\":\"$id\",\"name\":\"$id\",\"capabilities\":{\"platforms\":[\"android\"]}}") == 200 ]]; do sleep 5; done
	token=$(member access_token)
}

beat() { # says every 15 s that the build lives, and ends its command if it was cancelled
	reply=$dir/beat
	while sleep 15; do
		json "/api/builds/$build/heartbeat?worker_id=$id" '{}' "${held[@]}" >/dev/null
		if grep -q '"cancelled":true' "$reply"; then kill "$1"; fi
	done
}

work() { # one build, from its source to its end
	build=$(member id) attempt=$(member attempt)
	held=(-H "X-Worker-Id: $id" -H "X-Build-Id: $build" -H "X-Build-Attempt: $attempt")
	rm -f "$OUTPUT"
	reply=$SOURCE
	local status end=(-F success=false -F 'error_message=no source') lines=''
	status=$(request GET "/api/builds/$build/source" "${held[@]}")
	reply=$dir/reply
	if [[ $status == 200 ]]; then
		(cd "$dir" && exec bash -c "$command") >"$dir/log" 2>&1 & local pid=$!
		beat "$pid" & local beats=$!
		if wait "$pid" && [[ -f $OUTPUT ]]; then end=(-F success=true -F "result=@$OUTPUT"); else end[3]='error_message=the command failed'; fi
		kill "$beats"
		lines=$(tail -n 200 "$dir/log" | tr -d '\000-\010\013-\037' | tr '\t' ' ' | sed 's/[\\"]/\\&/g; s/.*/{"level":"info","message":"&"}/' | paste -sd, -)
		json "/api/builds/$build/logs" "{\"logs\":[$lines]}" "${held[@]}" >/dev/null
	fi
	# Safe to repeat: a result is taken once. 4xx is final, 409 that another attempt runs.
	until [[ $(request POST /api/workers/upload "${held[@]}" -F "build_id=$build" -F "worker_id=$id" "${end[@]}") =~ ^(2..|40[0-79]|413)$ ]]; do sleep 5; done
}

trap 'if ((BASHPID == $$)); then request POST /api/workers/unregister -H "X-Worker-Token: $token" >/dev/null; rm -rf "$dir"; fi' EXIT # a child that is killed right after its fork has the traps still
trap 'exit 0' INT TERM
register
while :; do
	case $(request POST '/api/workers/poll?wait=30' -H "X-Worker-Token: $token") in
	200) token=$(member access_token); if grep -q '"job":{' "$reply"; then work; fi ;;
	401 | 404) register ;; # the token is too old, or the worker was deleted
	*) sleep 2 ;;          # away or busy; the same token asks again
	esac
done
