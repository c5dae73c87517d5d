// Command steps counts the functions of takt between a poll and its reply:
//
//	go run ./cmd/internal/steps -list
//
// It builds takt with counters, lets one worker poll many times in one run and not at all in
// another, and compares how often each function was called. Those that were called with
// (nearly) every poll count; function literals belong to the function that contains them.
// Each poll comes alone, so it has its own batch.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"takt/cmd/internal/process"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// polls is how often a worker polls. It is fewer than a worker may hold builds.
const polls = 200

func main() {
	list := flag.Bool("list", false, "print the functions")
	flag.Parse()
	if err := measure(context.Background(), *list); err != nil { //nolint:forbidigo // there is no caller
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func measure(ctx context.Context, list bool) (err error) {
	dir, err := os.MkdirTemp("", "takt-steps")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	takt := filepath.Join(dir, "takt")
	if err := goTool(ctx, "build", "-cover", "-covermode=atomic", "-coverpkg=takt/...", "-o", takt, "./cmd/takt"); err != nil {
		return err
	}
	for _, k := range []struct {
		name   string
		builds int
	}{{"idle", 0}, {"assigned", polls}} {
		var counts [2]map[string]int
		for i, n := range []int{0, polls} {
			if counts[i], err = run(ctx, filepath.Join(dir, fmt.Sprint(k.name, n)), takt, k.builds, n); err != nil {
				return fmt.Errorf("%s polls: %w", k.name, err)
			}
		}
		if err := report(k.name, counts[0], counts[1], list); err != nil {
			return err
		}
	}
	return nil
}

func goTool(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go %s: %w", args[0], err)
	}
	return nil
}

// run starts takt with so many pending builds, lets a worker poll n times, and returns how
// often each block was executed.
func run(ctx context.Context, dir, takt string, builds, n int) (map[string]int, error) {
	counters := filepath.Join(dir, "counters")
	if err := os.MkdirAll(counters, 0o700); err != nil {
		return nil, err
	}
	site := process.Site{Dir: dir, Takt: takt}
	c, err := site.Controller(ctx, "controller", "GOCOVERDIR="+counters, "TAKT_POLL_RATE=100000")
	if err != nil {
		return nil, err
	}
	err = errors.Join(poll(ctx, c.Client, builds, n), c.Stop(ctx, time.Minute))
	if err != nil {
		return nil, err
	}
	text := filepath.Join(dir, "counts.txt")
	if err := goTool(ctx, "tool", "covdata", "textfmt", "-i="+counters, "-o="+text); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(text)
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		if at, rest, ok := strings.Cut(lines.Text(), ","); ok { // file:line.column,end statements count
			var end string
			var statements, count int
			if _, err := fmt.Sscan(rest, &end, &statements, &count); err == nil {
				counts[at] += count
			}
		}
	}
	return counts, nil
}

// poll lets a worker poll n times.
func poll(ctx context.Context, c *client.Client, builds, n int) error {
	for range builds {
		if _, err := c.Submit(ctx, client.Submit{Platform: store.IOS, Source: client.Bytes([]byte("source"))}); err != nil {
			return err
		}
	}
	w, err := c.Register(ctx, api.Register{Name: "steps", Capabilities: []byte(`{"maxConcurrentBuilds": 256}`)})
	if err != nil {
		return err
	}
	for token := w.AccessToken; n > 0; n-- {
		reply, err := c.Poll(ctx, client.Poll{Token: token})
		if err != nil {
			return err
		}
		if (reply.Job != nil) != (builds > 0) {
			return fmt.Errorf("a poll got %v", reply.Job)
		}
		token = reply.AccessToken
	}
	return nil
}

// function is a function of takt.
type function struct {
	name, at string
	lines    int
}

// report prints the functions that were called with each poll.
func report(kind string, without, with map[string]int, list bool) error {
	files := map[string]bool{}
	for at := range with {
		file, _, _ := strings.Cut(at, ":")
		files[file] = true
	}
	var called []function
	for file := range files {
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, strings.TrimPrefix(file, "takt/"), nil, 0)
		if err != nil {
			return err
		}
		for _, d := range parsed.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			begin, end := set.Position(f.Body.Lbrace), set.Position(f.End())
			at := fmt.Sprintf("%s:%d.%d", file, begin.Line, begin.Column)
			if _, ok := with[at]; !ok && len(f.Body.List) > 0 { // the counter may stand at the first statement
				first := set.Position(f.Body.List[0].Pos())
				at = fmt.Sprintf("%s:%d.%d", file, first.Line, first.Column)
			}
			if with[at]-without[at] >= polls*9/10 {
				called = append(called, function{
					strings.TrimPrefix(filepath.Dir(file), "takt/") + "." + f.Name.Name, fmt.Sprintf("%s:%d", strings.TrimPrefix(file, "takt/"), begin.Line),
					end.Line - set.Position(f.Pos()).Line + 1,
				})
			}
		}
	}
	slices.SortFunc(called, func(a, b function) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.name, b.name)) })
	longest := function{}
	for _, f := range called {
		if f.lines > longest.lines {
			longest = f
		}
		if list {
			fmt.Printf("  %-50s %s, %d lines\n", f.name, f.at, f.lines)
		}
	}
	fmt.Printf("%s poll: %d functions of takt; the longest is %s with %d lines\n", kind, len(called), longest.name, longest.lines)
	return nil
}
