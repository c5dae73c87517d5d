package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"takt/http/api"
	"takt/store"
)

// PrintTree draws a supervision tree in ASCII: one line per process with its state, its
// restarts and failures, and its waiting messages.
func PrintTree(w io.Writer, root api.TreeNode) {
	width := treeWidth(root, 0)
	printNode(w, root, "", "", width)
}

// PrintPlan shows what an order would do.
func PrintPlan(w io.Writer, p api.Plan) {
	fmt.Fprintf(w, "%s %s affects, in this order:\n", p.Action, store.Lines(p.Path))
	for _, path := range p.Affected {
		fmt.Fprintf(w, "  %s\n", store.Lines(path))
	}
	fmt.Fprintf(w, "requests under way: %d\n", p.Requests)
	if p.Detached {
		fmt.Fprintln(w, "the reply comes first: the HTTP server stops too")
	}
}

// treeWidth returns the width of the names including their indentation.
func treeWidth(n api.TreeNode, depth int) int {
	width := 4*depth + len([]rune(n.ID))
	for _, child := range n.Children {
		width = max(width, treeWidth(child, depth+1))
	}
	return width
}

func printNode(w io.Writer, n api.TreeNode, branch, indent string, width int) {
	name := branch + n.ID
	fmt.Fprintf(w, "%-*s  %s\n", width, name, describe(n))
	for i, child := range n.Children {
		if i == len(n.Children)-1 {
			printNode(w, child, indent+"`-- ", indent+"    ", width)
		} else {
			printNode(w, child, indent+"|-- ", indent+"|   ", width)
		}
	}
}

func describe(n api.TreeNode) string {
	status := n.Status
	if n.Detail != "" {
		status += " (" + n.Detail + ")"
	}
	if t := n.Terminated; t != nil {
		status += " by " + t.By + " at " + Time(t.At.Time()) + ": " + t.Reason
	}
	if below := n.Below(); below != "" && n.Status == "running" {
		status += " (" + below + " below)"
	}
	parts := []string{status}
	if n.Strategy != "" {
		parts = append(parts, n.Strategy)
	}
	if n.Status == "running" || n.Status == "suspended" {
		parts = append(parts, "up "+Age(time.Duration(n.UptimeMS)*time.Millisecond))
	}
	count := func(n int, one, many string) {
		switch {
		case n == 1:
			parts = append(parts, "1 "+one)
		case n > 1:
			parts = append(parts, fmt.Sprintf("%d %s", n, many))
		}
	}
	count(n.Restarts, "restart", "restarts")
	count(n.Mailbox, "message waits", "messages wait")
	if n.Messages > 0 && n.Type == "worker" {
		parts = append(parts, fmt.Sprintf("%d handled, %.0f µs each", n.Messages, 1000*n.BusyMS/float64(n.Messages)))
	}
	if len(n.Children) == 0 {
		count(n.ChildCount, "child", "children")
	}
	count(n.Leaked, "leaked", "leaked")
	if n.LastExit != "" && n.Terminated == nil {
		last := "last exit " + n.LastExit
		if n.LastExitAt != nil {
			last += " at " + Time(n.LastExitAt.Time())
		}
		parts = append(parts, last)
	}
	return store.Lines(strings.Join(parts, ", "))
}

// Age shows d in its two largest units: 3d 4h, 5m 2s, 0s.
func Age(d time.Duration) string {
	seconds := int64(d.Round(time.Second) / time.Second)
	units := []struct {
		name string
		size int64
	}{{"d", 86400}, {"h", 3600}, {"m", 60}, {"s", 1}}
	for i, u := range units {
		if seconds < u.size {
			continue
		}
		text := fmt.Sprintf("%d%s", seconds/u.size, u.name)
		if i+1 < len(units) {
			if rest := seconds % u.size / units[i+1].size; rest > 0 {
				text += fmt.Sprintf(" %d%s", rest, units[i+1].name)
			}
		}
		return text
	}
	return "0s"
}
