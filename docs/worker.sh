#!/usr/bin/env bash
# A worker of takt in shell and curl: worker.sh COMMAND
# COMMAND finds the source archive at $SOURCE and writes the file $OUTPUT. Parameters that
# $ACCEPT_ENV names are variables, and secrets if ACCEPT_SECRETS=1, as of takt worker; that takes jq.
set -euo pipefail
shopt -s extglob
: "${TAKT_URL:?}" "${TAKT_API_KEY:?}" "${1:?a command}"
accept=${ACCEPT_ENV:-'BUILD_*|APP_*|EXPO_PUBLIC_*|VERSION*'} max_timeout=${MAX_TIMEOUT:-14400} features='"exit"'
refused='PATH|HOME|USER|SHELL|ENV|IFS|TMPDIR|TERM|PWD|LD_*|DYLD_*|BASH_*|TAKT_*|SOURCE|OUTPUT' # and what else makes your tools load code
if command -v jq >/dev/null; then features+=',"env","timeout"'; fi # without, no such build comes
if [[ $features == *env* && ${ACCEPT_SECRETS:-} ]]; then features+=',"secrets"'; fi # builds of one user can read each other's
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
	until [[ $(json /api/workers/register "{\"id\":\"$id\",\"name\":\"$id\",\"capabilities\":{\"platforms\":[\"android\"],\"features\":[$features],\"max_timeout\":$max_timeout},\"active_builds\":[]}") == 200 ]]; do sleep 5; done
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
	rm -rf "$dir/secrets"
}

inputs() { # sets what the build was submitted with in vars, and in hidden what to mask; fails with $why
	export TAKT_PARAMS=$dir/params TAKT_SECRETS=$dir/secrets
	local status pair name as value line
	until status=$(request GET "/api/builds/$build/inputs" "${held[@]}") && [[ $status =~ ^(200|40[0-79]|41.|42[0-8])$ ]]; do sleep 5; done
	why="no parameters and secrets"
	[[ $status == 200 ]] || return
	limit=$(jq -r "if .timeout > 0 then .timeout else $limit end" "$reply")
	jq -c '.params // {}' "$reply" >"$TAKT_PARAMS"
	while IFS= read -r -d '' pair; do
		name=${pair%%=*}
		if [[ $name == @($accept) && $name != @($refused) ]]; then
			vars+=("$pair")
		elif [[ $(jq .params_optional "$reply") != true ]]; then
			why="parameter $name is not one that this worker's ACCEPT_ENV takes ($accept)"
			return 1
		fi
	done < <(jq -j '.params // {} | to_entries[] | "\(.key)=\(.value)\u0000"' "$reply")
	while IFS= read -r -d '' pair; do vars+=("$pair"); done < <(jq -j '(.labels // {} | to_entries
		| map({n: .key | ascii_upcase | gsub("[^A-Z0-9]"; "_"), v: .value}) | group_by(.n)[] | select(length == 1)[0] | "TAKT_LABEL_\(.n)=\(.v)\u0000"),
		({TAKT_COMMIT: .commit, TAKT_BRANCH: .branch, TAKT_SUBMITTER: .submitter} | to_entries[] | select(.value // "" != "") | "\(.key)=\(.value)\u0000")' "$reply")
	(umask 077 && mkdir -p "$TAKT_SECRETS")
	while read -r name as value; do
		why="secret $name can't be set"
		[[ $name =~ ^[A-Z_][A-Z0-9_]*$ && $name != @($refused) ]] || return
		if [[ $as == file ]]; then (umask 077 && base64 -d <<<"$value" >"$TAKT_SECRETS/$name"); fi # any bytes
		value=$(base64 -d <<<"$value" | tr -d '\000' && echo .) value=${value%.}
		if [[ $as == env ]]; then vars+=("$name=$value"); fi
		hidden+=("${value%$'\n'}")
		while IFS= read -r line; do if ((${#line} >= 8)); then hidden+=("$line"); fi; done <<<"$value"
	done < <(jq -r '.secrets // [] | .[] | "\(.name) \(.as) \(.value)"' "$reply")
	: >"$reply"
}

work() { # one build, from its source to its end
	build=$(member id) attempt=$(member attempt)
	held=(-H "X-Worker-Id: $id" -H "X-Build-Id: $build" -H "X-Build-Attempt: $attempt")
	rm -rf "$OUTPUT" "$dir"/{dropped,params,secrets}
	unset TAKT_PARAMS TAKT_SECRETS
	local status why='no source' lines='' text hide vars=() hidden=() limit=${TIMEOUT:-3600}
	if [[ $features == *env* ]] && grep -q '"inputs_url":"' "$reply" && ! inputs; then
		status=0
	else
		reply=$SOURCE
		status=$(request GET "/api/builds/$build/source" "${held[@]}")
		reply=$dir/reply
	fi
	local result=(-F success=false -F "error_message=$why")
	if [[ $status == 200 ]]; then
		set -m # each of the two gets a process group of its own
		# export, because everyone can read arguments
		(cd "$dir" && export TAKT_BUILD_ID="$build" "${vars[@]}" && exec timeout -k 5 "$limit" bash -c "$command") >"$dir/log" 2>&1 & running=$!
		beat "$running" & beats=$!
		set +m
		status=0
		wait "$running" || status=$?
		case $status in
		0) if [[ -f $OUTPUT ]]; then result=(-F success=true -F "result=@$OUTPUT"); else result[3]='error_message=the command wrote no file'; fi ;;
		124) result=(-F success=false -F "error_message=the command took more than $limit s" -F timed_out=true) ;;
		*) result=(-F success=false -F 'error_message=the command failed' -F "exit_code=$status") ;;
		esac
		{ kill -KILL -- "-$beats"; wait "$beats"; } 2>/dev/null || true
		end "$running" # what it has left behind
		rm -rf "$dir/secrets"
		running='' beats=''
		if [[ -e $dir/dropped ]]; then return; fi # nobody waits for a report
		text=$(tail -n 200 "$dir/log")
		for hide in "${hidden[@]}"; do if [[ $hide ]]; then text=${text//"$hide"/***}; fi; done # takt worker masks more forms
		lines=$(tr -d '\000-\010\013-\037' <<<"$text" | tr '\t' ' ' | sed 's/[\\"]/\\&/g; s/.*/{"level":"info","message":"&"}/' | paste -sd, -)
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
