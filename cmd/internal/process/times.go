package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of /proc's times.
const clockTick = 10 * time.Millisecond

// Times are processor times of a process, and whose child it is.
type Times struct {
	// Own is its own time, Ended that of its children that ended.
	Own, Ended time.Duration
	Parent     int
}

// TimesOf reads the times of a process. It works on Linux only.
func TimesOf(pid int) (Times, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Times{}, fmt.Errorf("reading a process's times: %w", err)
	}
	_, after, _ := bytes.Cut(raw, []byte(") ")) // its name may hold anything
	fields := strings.Fields(string(after))
	if len(fields) < 15 {
		return Times{}, fmt.Errorf("reading the times of process %d: %q", pid, raw)
	}
	var n [15]int
	for i := range n {
		n[i], _ = strconv.Atoi(fields[i]) // the first is no number
	}
	return Times{Own: time.Duration(n[11]+n[12]) * clockTick, Ended: time.Duration(n[13]+n[14]) * clockTick, Parent: n[1]}, nil
}

// All reads the times of all processes, none where that does not work.
func All() map[int]Times {
	all := map[int]Times{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // it is well formed
	for _, path := range stats {
		pid, _ := strconv.Atoi(strings.Split(path, "/")[2]) // the pattern has digits only
		if t, err := TimesOf(pid); err == nil {             // else it has ended meanwhile
			all[pid] = t
		}
	}
	return all
}

// below is the processor time of all processes below pid, also of those that ended.
func below(pid int) time.Duration {
	all := All()
	sum := all[pid].Ended
	for child, t := range all {
		// A chain of parents is not longer than there are processes.
		for parent, n := t.Parent, 0; parent > 1 && child != pid && n < len(all); parent, n = all[parent].Parent, n+1 {
			if parent == pid {
				sum += t.Own + t.Ended
				break
			}
		}
	}
	return sum
}
