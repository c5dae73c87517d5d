package runner

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Prepare implements [Command]: it pulls the image unless that is here, and removes the
// oldest of those that it pulled if they are too large together.
func (i *Image) Prepare(ctx context.Context, base string) error {
	name := i.image(base)
	if err := i.allowed(base); err != nil || name == "" {
		return err
	}
	select {
	case i.pulling <- struct{}{}:
		defer func() { <-i.pulling }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if _, err := i.size(ctx, name); err == nil {
		return nil
	}
	if err := i.pull(ctx, name); err != nil {
		return err
	}
	size, err := i.size(ctx, name)
	if err != nil {
		return imageError{name, err.Error()}
	}
	older := slices.DeleteFunc(i.pulled(), func(s string) bool { return s == name })
	return i.keep(append(i.evict(ctx, older, size), name))
}

// size is the size of an image in bytes; an error means that it is not here.
func (i *Image) size(ctx context.Context, name string) (int64, error) {
	said, err := i.ask(ctx, "image", "inspect", "--format", "{{.Size}}", name)
	if err != nil {
		return 0, err
	}
	n, _ := strconv.ParseInt(said, 10, 64) // an engine that doesn't say: 0
	return n, nil
}

func (i *Image) pull(ctx context.Context, name string) error {
	cmd := exec.CommandContext(ctx, i.Engine, "pull", "--quiet", name)
	cmd.Env, cmd.Dir, cmd.WaitDelay = i.HostEnv, "/", time.Second
	if said, err := cmd.CombinedOutput(); err != nil {
		return imageError{name, "pulling it: " + saying(err, said).Error()}
	}
	return nil
}

// evict removes images, the first one first, until the rest and size bytes fit, and returns
// the rest. The engine keeps images that containers use.
func (i *Image) evict(ctx context.Context, images []string, size int64) []string {
	if i.CacheLimit == 0 {
		return images
	}
	var rest []string
	for _, name := range slices.Backward(images) {
		n, err := i.size(ctx, name)
		if err != nil {
			continue // gone
		}
		if size+n > i.CacheLimit {
			if _, err := i.ask(ctx, "image", "rm", name); err == nil {
				continue
			}
		}
		size += n
		rest = append(rest, name)
	}
	slices.Reverse(rest)
	return rest
}

// pulled lists the images that were pulled for builds, the oldest first.
func (i *Image) pulled() []string {
	raw, _ := os.ReadFile(i.CacheFile) // none, should it fail
	return strings.Fields(string(raw))
}

func (i *Image) keep(images []string) error {
	if i.CacheFile == "" {
		return nil
	}
	return replace(i.CacheFile, strings.Join(images, "\n")+"\n")
}
