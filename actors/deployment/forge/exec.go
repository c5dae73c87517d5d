package forge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.opentelemetry.io/otel/trace"

	"takt/store/tracing"
)

// gitEnvironment returns the variables of an environment that git needs. It leaves out
// the user's git settings, because they could rewrite addresses or write the traffic to a
// file.
func gitEnvironment(environ []string, home string) []string {
	wanted := []string{
		"PATH", "TMPDIR", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
		"SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH",
	}
	env := []string{
		"HOME=" + home, "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=" + os.DevNull,
		"GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=true", "SSH_ASKPASS=true",
	}
	for _, kv := range environ {
		if name, _, _ := strings.Cut(kv, "="); slices.Contains(wanted, name) {
			env = append(env, kv)
		}
	}
	return env
}

// setting is one value of git's configuration.
type setting struct{ key, value string }

// baseSettings are the settings for a mirror that exists only for a short time.
func baseSettings() []setting {
	return []setting{
		{"credential.helper", ""},         // use no credential helper of the machine
		{"gc.auto", "0"},                  // leave no background process behind
		{"maintenance.auto", "false"},     //
		{"core.fsync", "none"},            // no syncs, because after a power failure the mirror is removed, not read
		{"core.hooksPath", os.DevNull},    //
		{"transfer.unpackLimit", "1"},     // keep received objects as one pack
		{"protocol.allow", "never"},       // allow only HTTP, even if a server names another protocol
		{"protocol.http.allow", "always"}, //
		{"protocol.https.allow", "always"},
		{"protocol.version", "0"},         // a clone takes a request less; it needs all refs, so version 2 can't leave any out
		{"http.followRedirects", "false"}, // and allow no other host
		{"http.lowSpeedLimit", "1"},       // a connection without traffic counts as broken
		{"http.lowSpeedTime", "120"},
		{"lfs.concurrenttransfers", "4"},
		{"lfs.locksverify", "false"},
	}
}

// configured returns settings as environment variables, because neither the process list
// nor a file shows those.
func configured(settings []setting) []string {
	env := []string{"GIT_CONFIG_COUNT=" + strconv.Itoa(len(settings))}
	for i, s := range settings {
		n := strconv.Itoa(i)
		env = append(env, "GIT_CONFIG_KEY_"+n+"="+s.key, "GIT_CONFIG_VALUE_"+n+"="+s.value)
	}
	return env
}

var errGitTooSlow = errors.New("git took longer than its time limit")

// gitError is a failed git command.
type gitError struct {
	command string // its first word
	said    string // the end of its output
	err     error
}

func (e *gitError) Error() string { return fmt.Sprintf("git %s: %v: %s", e.command, e.err, e.said) }
func (e *gitError) Unwrap() error { return e.err }

// drainTime is how long git's output is read after its group was killed.
const drainTime = 2 * time.Second

// git runs one git command in its own process group and returns its output. own are
// settings for this command, besides the common ones. The end of ctx or the time limit
// kills the group. When git returns, no process of the group is left.
func (a *Account) git(ctx context.Context, dir string, own []setting, args ...string) (_ string, err error) {
	ctx, span := tracing.Start(ctx, trace.SpanKindClient, "git "+args[0])
	defer func() { tracing.End(span, err) }()
	ctx, cancel := context.WithTimeoutCause(ctx, a.g.cfg.GitTimeout, errGitTooSlow)
	defer cancel()
	notice(ctx, time.Now().Add(a.g.cfg.GitTimeout))
	defer func() { notice(ctx, time.Now()) }()
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	if cmd.Path, cmd.Err = a.g.lookPath("git"), nil; cmd.Path == "" {
		return "", &gitError{command: args[0], err: exec.ErrNotFound}
	}
	cmd.Env = slices.Concat(a.g.env, configured(slices.Concat(baseSettings(), own, []setting{{"http." + a.origin() + ".extraHeader", a.header()}})))
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := runGroup(cmd); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return "", &gitError{command: args[0], said: a.lastWords(said.String()), err: err}
	}
	return out.String(), nil
}

// origin is the only address that the credential may be sent to.
func (a *Account) origin() string {
	return a.g.base.Scheme + "://" + strings.TrimPrefix(a.g.base.Host, "api.") + "/"
}

// lastWords returns the end of git's output in one line, without the credential.
func (a *Account) lastWords(said string) string {
	const keep = 400
	var lines []string
	for line := range strings.Lines(said) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "hint:") {
			lines = append(lines, line)
		}
	}
	text := strings.Join(lines[max(0, len(lines)-4):], "; ")
	for _, secret := range []string{a.token, strings.TrimPrefix(a.header(), "Authorization: Basic ")} {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "***")
		}
	}
	return strings.ToValidUTF8(text[max(0, len(text)-keep):], "")
}

// runGroup runs cmd and then kills all processes that cmd has started. The end of cmd's
// context kills them all too.
func runGroup(cmd *exec.Cmd) error {
	cmd.SysProcAttr = groupAttr()
	cmd.Cancel = func() error { return killGroup(cmd.Process.Pid) }
	cmd.WaitDelay = drainTime
	// Linux sends the parent's death signal when the thread that started the child ends.
	// So this goroutine keeps its thread until the child has ended.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return err
	}
	// The group is killed before its leader is reaped, because until then no other
	// process can get the group's number.
	if awaitExit(cmd.Process.Pid) {
		_ = killGroup(cmd.Process.Pid) // usually the group is empty
	}
	return cmd.Wait()
}

// killGroup kills every process of a group.
func killGroup(pid int) error {
	if err := syscall.Kill(-pid, syscall.SIGKILL); err != nil {
		return os.ErrProcessDone
	}
	return nil
}
