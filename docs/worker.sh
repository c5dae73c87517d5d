#!/usr/bin/env bash
# A worker of takt in shell and curl: worker.sh COMMAND
# COMMAND finds the source archive at $SOURCE and writes the file $OUTPUT.
set -euo pipefail
: "${TAKT_URL:?}" "${TAKT_API_KEY:?}" "${1:?a command}"
command=$1 id=${WORKER_ID:-shell-$(hostname)} token='' running='' beats='' dir=$(mktemp -d) reply=$dir/reply
export SOURCE=$dir/source OUTPUT=$dir/output

# request METHOD PATH [CURL OPTION...] prints the status, 000 if nobody answers.
# The body is in $reply. What moves for a minute goes on; what stands still ends.
request() {
	curl -sS --connect-timeout 10 --speed-time 60 --speed-limit 1 -o "$reply" -w '%{http_code}' \
		-X "$1" -H "X-API-Key: $TAKT_API_KEY" "${@:3}" "$TAKT_URL$2" || true
}
json() { request POST "$1" -H 'Content-Type: application/json' -d "$2" "${@:3}"; }
member() { sed -n 's/.*"'"$1"'":"\{0,1\}\([^",}]*\).*/\1/p' "$reply"; }

register() { # active_builds: what an earlier process of this worker had is pending again at once
	until [[ $(json /api/workers/register "{\"id\":\"$id\",\"name\":\"$id\",\"capabilities\":{\"platforms\":[\"android\"]},\"active_builds\":[]}") == 200 ]]; do sleep 5; done
	token=$(member access_token)
}

# end ends a process group: the command and all that it has started.
end() { if kill -- "-$1" 2>/dev/null; then sleep 1; kill -KILL -- "-$1" 2>/dev/null || true; fi; }

beat() { # says every 15 s that the build lives; ends its command if it was cancelled, is not ours any more, or we were killed
	reply=$dir/beat
	while sleep "${BEAT:-15}" && kill -0 $$ 2>/dev/null; do
		json "/api/builds/$build/heartbeat?worker_id=$id" '{}' "${held[@]}" >/dev/null
		if grep -qE '"cancelled":true|"code":"(not_assigned|not_found|stale_attempt)"' "$reply"; then break; fi
	done
	touch "$dir/dropped"
	end "$1"
}

work() { # one build, from its source to its end
	build=$(member id) attempt=$(member attempt)
	held=(-H "X-Worker-Id: $id" -H "X-Build-Id: $build" -H "X-Build-Attempt: $attempt")
	rm -f "$OUTPUT" "$dir/dropped"
	reply=$SOURCE
	local status result=(-F success=false -F 'error_message=no source') lines=''
	status=$(request GET "/api/builds/$build/source" "${held[@]}")
	reply=$dir/reply
	if [[ $status == 200 ]]; then
		set -m # each of the two gets a process group of its own
		(cd "$dir" && exec bash -c "$command") >"$dir/log" 2>&1 & running=$!
		beat "$running" & beats=$!
		set +m
		if wait "$running" && [[ -f $OUTPUT ]]; then result=(-F success=true -F "result=@$OUTPUT"); else result[3]='error_message=the command failed'; fi
		{ kill -KILL -- "-$beats"; wait "$beats"; } 2>/dev/null || true
		end "$running" # what it has left behind
		running='' beats=''
		if [[ -e $dir/dropped ]]; then return; fi # nobody waits for a report
		lines=$(tail -n 200 "$dir/log" | tr -d '\000-\010\013-\037' | tr '\t' ' ' | sed 's/[\\"]/\\&/g; s/.*/{"level":"info","message":"&"}/' | paste -sd, -)
		json "/api/builds/$build/logs" "{\"logs\":[$lines]}" "${held[@]}" >/dev/null
	fi
	# Safe to repeat: a result is taken once. 4xx is final, 409 that another attempt runs.
	until [[ $(request POST /api/workers/upload "${held[@]}" -F "build_id=$build" -F "worker_id=$id" "${result[@]}") =~ ^(2..|40[0-79]|413)$ ]]; do sleep 5; done
}

leave() {
	((BASHPID == $$)) || return 0 # a child that is killed right after its fork has the trap still
	if [[ $beats ]]; then kill -KILL -- "-$beats" || true; fi
	if [[ $running ]]; then end "$running"; fi
	request POST /api/workers/unregister -H "X-Worker-Token: $token" >/dev/null
	rm -rf "$dir"
}
trap leave EXIT
trap 'exit 0' INT TERM
register
while :; do
	case $(request POST '/api/workers/poll?wait=30' -H "X-Worker-Token: $token") in
	200) token=$(member access_token); if grep -q '"job":{' "$reply"; then work; fi ;;
	401 | 404) register ;; # the token is too old, or the worker was deleted
	*) sleep 2 ;;          # away or busy; the same token asks again
	esac
done
