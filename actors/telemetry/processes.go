package telemetry

import (
	"takt/actors/otp"
	"takt/store/metrics"
)

// MeasureProcesses shows the messages of the processes of a tree, and how many processes
// each of its parts has.
func MeasureProcesses(show metrics.Show, top otp.Node) {
	measureProcess(show, top)
	for _, part := range top.Children {
		show("takt_processes", float64(running(part)), part.Path)
	}
}

// running counts a process and those below it that run.
func running(n otp.Node) (count int) {
	if !n.StartedAt.IsZero() {
		count = 1
	}
	if len(n.Children) == 0 {
		return count + n.ChildCount // of a dynamic supervisor
	}
	for _, child := range n.Children {
		count += running(child)
	}
	return count
}

// measureProcess shows the messages of a process and of those below it. Children of
// dynamic supervisors are left out, because they are short-lived.
func measureProcess(show metrics.Show, n otp.Node) {
	if !n.StartedAt.IsZero() {
		show("takt_process_messages_total", float64(n.Messages), n.Path)
		show("takt_process_busy_seconds_total", n.Busy.Seconds(), n.Path)
		show("takt_process_mailbox_messages", float64(n.Mailbox), n.Path)
	}
	for _, child := range n.Children {
		measureProcess(show, child)
	}
}
