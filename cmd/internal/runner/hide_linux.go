package runner

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Hide keeps secrets of this process from others of the same user, such as the
// commands of builds: it overwrites them where /proc shows arguments and environment,
// and makes the process undumpable, so that /proc shows its memory to root only.
func Hide(secrets ...string) error {
	wiped := wipe(secrets)
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return errors.Join(wiped, fmt.Errorf("prctl: %w", err))
	}
	return wiped
}

// wipe overwrites secrets between the first argument and the last variable, which
// lie in one piece.
func wipe(secrets []string) error {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return err
	}
	// pid (name) and 49 fields more: arg_start is the 48th of all, env_end the 51st.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 49 {
		return errors.New("/proc/self/stat does not say where the environment is")
	}
	from, err1 := strconv.ParseInt(fields[45], 10, 64)
	to, err2 := strconv.ParseInt(fields[48], 10, 64)
	if err := errors.Join(err1, err2); err != nil || from <= 0 || to < from || to-from > 8<<20 {
		return fmt.Errorf("/proc/self/stat: environment from %d to %d: %w", from, to, err)
	}
	memory, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer memory.Close()
	region := make([]byte, to-from)
	if _, err := memory.ReadAt(region, from); err != nil {
		return err
	}
	for _, s := range secrets {
		if s == "" {
			continue
		}
		for at := bytes.Index(region, []byte(s)); at >= 0; at = bytes.Index(region, []byte(s)) {
			copy(region[at:], bytes.Repeat([]byte{'*'}, len(s)))
			if strings.Trim(s, "*") == "" {
				break
			}
		}
	}
	_, err = memory.WriteAt(region, from)
	return err
}
