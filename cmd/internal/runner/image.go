package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"takt/store"
)

// Image runs each build in a container of its own. Its paths are the same for
// every build: /takt/source, /takt/certs (read only), /takt/out.
type Image struct {
	// Engine is the program: docker or podman, a name or a path.
	Engine string
	// Image is the image's name, or FromJob for the one that the controller names.
	Image string
	// Allow are the images that the controller may name, as patterns of path.Match: a *
	// stands for anything but slashes.
	Allow []string
	// CacheFile names the images that were pulled for builds. What they take up together
	// is kept below CacheLimit, in bytes; 0 is no limit.
	CacheFile  string
	CacheLimit int64
	// Script is given to sh -c in the container; "" runs the image's own
	// command.
	Script string
	// Network is the engine's --network, such as "none" or "bridge". ""
	// leaves the engine's default.
	Network string
	// Caps are the capabilities of the container, such as those of [UsualCaps]. See
	// capabilities(7).
	Caps []string
	// User is the engine's --user. "" leaves the image's.
	User string
	// Env are further variables, NAME=value.
	Env []string
	// HostEnv is the engine's own environment: PATH, HOME, DOCKER_HOST.
	HostEnv []string

	limits  Resources
	pids    bool          // the engine can limit the number of processes
	pulling chan struct{} // held during a pull
}

// UsualCaps are the capabilities with which root in a container can install packages, own
// files and use the workspace of a worker that is not root, and no others.
func UsualCaps() []string {
	return []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID"}
}

// FromJob stands for the image that the controller names with each build.
const FromJob = "from-job"

// imageError is why an image can't be used.
type imageError struct{ image, why string }

func (e imageError) Error() string {
	return fmt.Sprintf("image %q: %s", store.Clip(e.image, 200), e.why)
}

// imageName matches what engines read as a name, and never as a flag.
var imageName = regexp.MustCompile(`^[a-z0-9][A-Za-z0-9._:/@-]*$`)

// image is the image of a build for which the controller names base; "" if that is not
// known.
func (i *Image) image(base string) string {
	if i.Image == FromJob {
		return base
	}
	return i.Image
}

// allowed returns why the controller may not name an image.
func (i *Image) allowed(base string) error {
	match := func(pattern string) bool {
		ok, _ := path.Match(pattern, base)
		return ok
	}
	if i.Image != FromJob || base == "" || imageName.MatchString(base) && slices.ContainsFunc(i.Allow, match) {
		return nil
	}
	return imageError{base, "not one that this worker's --allow-image names"}
}

// Engines are looked for in this order.
func Engines() []string { return []string{"docker", "podman"} }

// FindEngine returns the first engine in PATH that answers, because docker's client may be
// there without its daemon; if none answers, the first. env is the engine's environment.
func FindEngine(ctx context.Context, env []string) (first string, err error) {
	for _, name := range Engines() {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		if check(ctx, env, path, "info") == nil {
			return path, nil
		}
		first = cmp.Or(first, path)
	}
	if first != "" {
		return first, nil
	}
	return "", fmt.Errorf("no container engine found: install one of %s, or name it with --engine", strings.Join(Engines(), ", "))
}

// Check implements [Command]: the engine must answer, and the image be allowed and here.
func (i *Image) Check(ctx context.Context, base string) error {
	if err := i.allowed(base); err != nil {
		return err
	}
	name := i.image(base)
	if name != "" {
		if _, err := i.size(ctx, name); err == nil {
			return nil
		}
	}
	if err := check(ctx, i.HostEnv, i.Engine, "info"); err != nil {
		return fmt.Errorf("container engine %s can't be reached: %w", i.Engine, err)
	}
	if name != "" {
		return imageError{name, "not here yet"}
	}
	return nil
}

// Plan implements [Command].
func (i *Image) Plan(w Workspace) Plan {
	name := w.name()
	args, vars, file := i.args(w, name)
	return Plan{
		Argv: slices.Concat([]string{i.Engine}, args),
		Env:  slices.Concat(i.HostEnv, []string{"PWD=" + w.Source}),
		Dir:  w.Source, vars: vars, envFile: file,
		// The container belongs to the engine, not to our process group.
		Cleanup: []string{i.Engine, "rm", "--force", "--volumes", name},
		blame:   func(ctx context.Context, err error) error { return i.blame(ctx, name, err) },
		written: func(ctx context.Context) int64 { return i.written(ctx, name) },
	}
}

// Limit implements [Command]: the engine enforces limits if the machine supports them.
func (i *Image) Limit(ctx context.Context, r Resources) error {
	i.pulling = make(chan struct{}, 1)
	// podman lists controllers, docker reports true or false.
	said, err := i.ask(ctx, "info", "--format", "{{.Host.CgroupControllers}}")
	if err != nil {
		said, err = i.ask(ctx, "info", "--format", "{{if .CPUCfsQuota}}cpu {{end}}{{if .MemoryLimit}}memory {{end}}{{if .PidsLimit}}pids{{end}}")
	}
	if err != nil {
		return err
	}
	has := strings.Fields(strings.Trim(said, "[]"))
	i.pids = slices.Contains(has, "pids")
	missing := func(name string) error { return fmt.Errorf("%s has no %s controller", filepath.Base(i.Engine), name) }
	for _, name := range r.controllers() {
		if !slices.Contains(has, name) {
			return missing(name)
		}
	}
	i.limits = r
	if !i.pids {
		return missing("pids")
	}
	return nil
}

// ask runs the engine and returns its output.
func (i *Image) ask(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, i.Engine, args...)
	cmd.Env, cmd.Dir, cmd.WaitDelay = i.HostEnv, "/", time.Second
	said, err := cmd.Output()
	return strings.TrimSpace(string(said)), err
}

const (
	// killed is the engine's exit code for a container that was killed.
	killed = 128 + int(syscall.SIGKILL)
	// From engineFailed to engineFailedLast are its exit codes for its own failures, and
	// for those of the OCI runtime.
	engineFailed, engineFailedLast = 125, 127
)

// blame treats a container that was killed without a stop as one that used too much memory,
// and one that never began as a failure of the engine. The exit code alone is not enough,
// because the build command may exit with any.
func (i *Image) blame(ctx context.Context, name string, err error) error {
	ended, ok := errors.AsType[exitError](err)
	switch {
	case ok && ended.Code == killed && i.limits.Memory > 0:
		return i.limits.memoryLimit()
	case ok && ended.Code >= engineFailed && ended.Code <= engineFailedLast && !i.began(ctx, name):
		return faultError{store.FaultEngine, fmt.Errorf("container engine failed: %w", err)}
	}
	return err
}

// began reports whether a container exists and was ever started.
func (i *Image) began(ctx context.Context, name string) bool {
	said, err := i.ask(ctx, "container", "inspect", "--format", "{{.State.StartedAt}}", name)
	return err == nil && !strings.HasPrefix(said, "0001-")
}

// written is the size of a container's own layer; 0 before it has begun.
func (i *Image) written(ctx context.Context, name string) int64 {
	said, _ := i.ask(ctx, "container", "inspect", "--size", "--format", "{{.SizeRw}}", name)
	n, _ := strconv.ParseInt(said, 10, 64)
	return n
}

// args is the engine's argument list. The container's variables are in vars, from where the
// engine takes the values of those that args name, and in file.
func (i *Image) args(w Workspace, name string) (args, vars []string, file string) {
	inside := w
	inside.Source, inside.Output = "/takt/source", "/takt/out/"+outputName
	args = []string{
		// Without --rm, because blame looks at the container. Cleanup removes it.
		"run", "--init", "--name", name,
		"--label", "takt.build=" + w.BuildID, "--security-opt", "no-new-privileges", "--cap-drop", "ALL",
		"--volume", w.Source + ":/takt/source",
		"--volume", strings.TrimSuffix(w.Output, "/"+outputName) + ":/takt/out",
	}
	for _, name := range i.Caps {
		args = append(args, "--cap-add", name)
	}
	if i.pids {
		args = append(args, "--pids-limit", strconv.Itoa(maxProcesses))
	}
	if w.Certs != "" {
		inside.Certs = "/takt/certs"
		args = append(args, "--volume", w.Certs+":/takt/certs:ro")
	}
	if w.Params != "" {
		inside.Params = "/takt/params.json"
		args = append(args, "--volume", w.Params+":/takt/params.json:ro")
	}
	if w.Secrets != "" {
		inside.Secrets = "/takt/secrets"
		args = append(args, "--volume", w.Secrets+":/takt/secrets:ro")
	}
	args = append(args, "--workdir", "/takt/source")
	if i.limits.CPUs > 0 {
		args = append(args, "--cpus", strconv.FormatFloat(i.limits.CPUs, 'f', -1, 64))
	}
	if i.limits.Memory > 0 {
		memory := strconv.FormatInt(i.limits.Memory, 10)
		args = append(args, "--memory", memory, "--memory-swap", memory)
	}
	if i.Network != "" {
		args = append(args, "--network", i.Network)
	}
	if i.User != "" {
		args = append(args, "--user", i.User)
	}
	for _, variable := range slices.Concat(i.Env, inside.env(), w.Vars) {
		name, _, _ := strings.Cut(variable, "=")
		if EngineReads(name) {
			file += variable + "\n"
			continue
		}
		args, vars = append(args, "--env", name), append(vars, variable)
	}
	if file != "" {
		args = append(args, "--env-file", w.envFile)
	}
	args = append(args, i.image(w.Image))
	if i.Script != "" {
		args = append(args, "sh", "-c", i.Script)
	}
	return args, vars, file
}

// EngineReads reports whether a container engine may take a variable of its own environment to
// heart. A container gets such a one from a file, which can hold one line only.
func EngineReads(name string) bool {
	exact := []string{
		"PATH", "PWD", "HOME", "USER", "LOGNAME", "TMPDIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "FTP_PROXY",
		"SSL_CERT_FILE", "SSL_CERT_DIR", "SSH_AUTH_SOCK", "SSH_ASKPASS", "SSH_ASKPASS_REQUIRE", "SSH_SK_PROVIDER",
		"REGISTRY_AUTH_FILE", "STORAGE_DRIVER", "STORAGE_OPTS", "GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GOTRACEBACK", "GOCOVERDIR", "NOTIFY_SOCKET", "OCI_RUNTIME",
	}
	prefixes := []string{
		"DOCKER", "MOBY_", "BUILDKIT_", "BUILDX_", "COMPOSE_", "CONTAINER", "_CONTAINERS", "PODMAN_", "_PODMAN", "LIBPOD_", "XDG_",
		"DBUS_", "LISTEN_", "CNI_", "NETAVARK_", "CRUN_", "RUNC_", "SYSTEMD_", "OTEL_", "BUILDAH_", "IMAGES_", "LD_",
	}
	name = strings.ToUpper(name) // proxies are read in small letters, too
	return slices.Contains(exact, name) || slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}
