package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"

	"takt/store"
)

// machine identifies the machine of a worker. Both are "" where they are unknown.
type machine struct {
	id   string // of the installation, as in machine-id(5)
	boot string // of the time since the machine was started
}

// thisMachine returns this machine's ids. A container has the boot id of its host.
func thisMachine(ctx context.Context) machine {
	if runtime.GOOS == "darwin" {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		platform, _ := exec.CommandContext(ctx, "/usr/sbin/ioreg", "-rd1", "-c", "IOPlatformExpertDevice").Output()
		boot, _ := exec.CommandContext(ctx, "/usr/sbin/sysctl", "-n", "kern.bootsessionuuid").Output()
		m := machine{boot: strings.TrimSpace(string(boot))}
		if found := regexp.MustCompile(`"IOPlatformUUID" = "([^"]+)"`).FindSubmatch(platform); found != nil {
			m.id = string(found[1])
		}
		return m
	}
	read := func(path string) string {
		raw, _ := os.ReadFile(path) // "" if there is none
		return strings.TrimSpace(string(raw))
	}
	m := machine{id: read("/etc/machine-id"), boot: read("/proc/sys/kernel/random/boot_id")}
	if m.id == "uninitialized" {
		m.id = ""
	}
	return m
}

// identify sets the worker's id and the id of its process. It returns true if the id is
// new because the directory was made on another machine.
//
// The controller treats two processes with one worker id as the same only if they have the
// same process id. A process keeps the id of the one before it in this directory if that has
// certainly ended: the directory, which is locked, was neither copied nor moved to
// another file system, and the machine was not started again.
func (s *state) identify(here machine) (copied bool, err error) {
	file := filepath.Join(s.dir, "instance")
	raw, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	instance, rest, _ := strings.Cut(string(raw), "\n")
	place, origin, _ := strings.Cut(rest, "\n")
	origin = strings.TrimSpace(origin)

	self := ""
	if here.id != "" {
		self = digest([]byte(here.id)) // machine-id(5): not to be shown to others
	}
	if copied = origin != "" && self != "" && origin != self; copied {
		s.id, err = s.newID()
	} else {
		s.id, err = s.readID()
	}
	if err != nil {
		return false, err
	}
	info, err := os.Stat(s.dir)
	if err != nil {
		return false, err
	}
	at := info.Sys().(*syscall.Stat_t) // on every Unix
	now := fmt.Sprintf("%d:%d %s", at.Dev, at.Ino, here.boot)
	if copied || here.boot == "" || place != now || !store.ValidID(instance) {
		instance = store.NewID()
	}
	if self == "" {
		self = origin
	}
	s.instance = instance
	return copied, replace(file, instance+"\n"+now+"\n"+self+"\n")
}
