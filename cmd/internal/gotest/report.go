package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// event is what is read of a line of go test -json (go doc test2json).
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64 // seconds
}

// report counts tests, and prints what go test prints without -v.
type report struct {
	out    io.Writer
	output map[[2]string][]string // of tests that have not ended, by package and test
	count  map[string]int         // by action: pass, fail, skip
	needs  map[string]int         // of skipped tests, by the need that was not met
	// targets counts those that another target of make runs.
	targets map[string]int
	ended   []ended
	// partly has the tests at the top that failed, were skipped, or have a part that was.
	partly map[string]bool
}

// ended is a test at the top, of any result.
type ended struct {
	pkg, name string
	seconds   float64
}

func newReport(out io.Writer) *report {
	return &report{out: out, output: map[[2]string][]string{}, count: map[string]int{}, needs: map[string]int{}, targets: map[string]int{}, partly: map[string]bool{}}
}

// read takes events until go test has ended.
func (r *report) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		var e event
		if len(line) > 0 && json.Unmarshal(line, &e) != nil {
			fmt.Fprintf(r.out, "%s", line) // it is none
		}
		r.take(e)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) take(e event) {
	key := [2]string{e.Package, e.Test}
	switch {
	case e.Action == "build-output", e.Action == "output" && e.Test == "" && worthSaying(e.Output):
		fmt.Fprint(r.out, e.Output)
	case e.Action == "output" && e.Test != "":
		r.output[key] = append(r.output[key], e.Output)
	case (e.Action == "pass" || e.Action == "fail" || e.Action == "skip") && e.Test != "":
		r.end(e, r.output[key])
		delete(r.output, key)
	}
}

// worthSaying reports whether a line about a package is printed without -v.
func worthSaying(line string) bool {
	return line != "PASS\n" && !strings.Contains(line, "[no test files]")
}

// need and target find in what a skipped test says (package needs) which need is not met, and
// which target of make runs it.
var (
	need   = regexp.MustCompile(`needs ([^:\n]+):`)
	target = regexp.MustCompile(`: left to (make [a-z-]+)\n`)
)

func (r *report) end(e event, output []string) {
	r.count[e.Action]++
	top, _, part := strings.Cut(e.Test, "/")
	if e.Action != "pass" {
		r.partly[top] = true
	}
	if !part {
		r.ended = append(r.ended, ended{e.Package, e.Test, e.Elapsed})
	}
	switch e.Action {
	case "fail":
		fmt.Fprint(r.out, strings.Join(output, ""))
	case "skip":
		said := strings.Join(output, "")
		if m := need.FindStringSubmatch(said); m != nil {
			r.needs[m[1]]++
		} else if m := target.FindStringSubmatch(said); m != nil {
			r.targets[m[1]]++
		} else {
			fmt.Fprint(r.out, said) // nobody else says why
		}
	}
}

// close says what ran, what did not, and what took long.
func (r *report) close(slowest int, took time.Duration) {
	for key, output := range r.output { // of tests that never ended
		if key[1] != "" && len(output) > 0 {
			fmt.Fprintf(r.out, "%s %s did not end:\n%s", key[0], key[1], strings.Join(output, ""))
			r.count["fail"]++
		}
	}
	slices.SortFunc(r.ended, func(a, b ended) int { return cmp.Compare(b.seconds, a.seconds) })
	for i, t := range r.ended[:min(slowest, len(r.ended))] {
		if i == 0 {
			fmt.Fprint(r.out, "\nslowest:\n")
		}
		fmt.Fprintf(r.out, "%7.1fs %s %s\n", t.seconds, strings.TrimPrefix(t.pkg, "takt/"), t.name)
	}
	fmt.Fprintf(r.out, "\ntook %s\n%d passed, %d failed, %d skipped\n", took.Round(time.Second), r.count["pass"], r.count["fail"], r.count["skip"])
	need := func(n int) string { return map[bool]string{true: "needs", false: "need"}[n == 1] }
	r.list("not here: %s (make check)\n", r.needs, need)
	r.list("run when asked for: %s\n", r.targets, func(int) string { return "by" })
}

// list prints the counts, the largest first, with a word between each and its name.
func (r *report) list(format string, counts map[string]int, word func(n int) string) {
	var parts []string
	for _, name := range slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	}) {
		parts = append(parts, fmt.Sprintf("%d %s %s", counts[name], word(counts[name]), name))
	}
	if len(parts) > 0 {
		fmt.Fprintf(r.out, format, strings.Join(parts, ", "))
	}
}

// complete returns the tests at the top of which everything passed, in all packages.
func (r *report) complete() (names []string) {
	for _, t := range r.ended {
		if !r.partly[t.name] {
			names = append(names, t.name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
