package runner

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

// Image runs each build in a container of its own. Its paths are the same for
// every build: /takt/source, /takt/certs (read only), /takt/out.
type Image struct {
	// Engine is the program: docker or podman, a name or a path.
	Engine string
	// Image is the image's name.
	Image string
	// Script is given to sh -c in the container; "" runs the image's own
	// command.
	Script string
	// Network is the engine's --network, such as "none" or "bridge". ""
	// leaves the engine's default.
	Network string
	// User is the engine's --user. "" leaves the image's.
	User string
	// Env are further variables, NAME=value.
	Env []string
	// HostEnv is the engine's own environment: PATH, HOME, DOCKER_HOST.
	HostEnv []string
}

// Engines are looked for in this order.
func Engines() []string { return []string{"docker", "podman"} }

// FindEngine returns the first engine in PATH.
func FindEngine() (string, error) {
	for _, name := range Engines() {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no container engine found: install one of %s, or name it with --engine", strings.Join(Engines(), ", "))
}

// Check implements [Command]: the engine must answer.
func (i Image) Check(ctx context.Context) error {
	if err := check(ctx, i.HostEnv, i.Engine, "info"); err != nil {
		return fmt.Errorf("container engine %s can't be reached: %w", i.Engine, err)
	}
	return nil
}

// Plan implements [Command].
func (i Image) Plan(w Workspace) Plan {
	name := i.container(w)
	return Plan{
		Argv: slices.Concat([]string{i.Engine}, i.args(w, name)),
		Env:  slices.Concat(i.HostEnv, []string{"PWD=" + w.Source}),
		Dir:  w.Source,
		// The container belongs to the engine, not to our process group.
		Cleanup: []string{i.Engine, "rm", "--force", "--volumes", name},
	}
}

// container is the container's name.
func (Image) container(w Workspace) string {
	return "takt-" + w.BuildID + "-" + strconv.Itoa(w.Attempt)
}

// args is the engine's argument list.
func (i Image) args(w Workspace, name string) []string {
	inside := w
	inside.Source, inside.Output = "/takt/source", "/takt/out/"+outputName
	args := []string{
		"run", "--rm", "--init", "--name", name,
		"--label", "takt.build=" + w.BuildID,
		"--volume", w.Source + ":/takt/source",
		"--volume", strings.TrimSuffix(w.Output, "/"+outputName) + ":/takt/out",
	}
	if w.Certs != "" {
		inside.Certs = "/takt/certs"
		args = append(args, "--volume", w.Certs+":/takt/certs:ro")
	}
	args = append(args, "--workdir", "/takt/source")
	if i.Network != "" {
		args = append(args, "--network", i.Network)
	}
	if i.User != "" {
		args = append(args, "--user", i.User)
	}
	for _, variable := range slices.Concat(i.Env, inside.env()) {
		args = append(args, "--env", variable)
	}
	args = append(args, i.Image)
	if i.Script != "" {
		args = append(args, "sh", "-c", i.Script)
	}
	return args
}
