package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/http/api"
	"takt/http/client"
)

func newTreeCommand(env environment) *cobra.Command {
	r := remote{env: env}
	var all, watch bool
	cmd := &cobra.Command{
		Use:   "tree [PATH]",
		Short: "Show the controller's supervision tree",
		Long: `Show the controller's supervision tree, or the part of it at PATH, such as
database/pool. Needs the admin key in TAKT_ADMIN_KEY.`,
		Args: cli.Arguments(cobra.MaximumNArgs(1)),
	}
	cmd.Flags().BoolVar(&all, "all", false, "list the children of dynamic supervisors too")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show it again every second, until interrupted")
	return r.command(cmd, func(ctx context.Context, s *session, args []string) error {
		o := client.TreeOptions{All: all}
		if len(args) == 1 {
			o.Path = strings.Trim(args[0], "/")
		}
		if watch {
			return s.watchTree(ctx, o)
		}
		root, err := again(ctx, s, func(ctx context.Context) (api.TreeNode, error) {
			return s.client.Tree(ctx, o)
		})
		if err != nil {
			return err
		}
		return s.Result(root, func(w io.Writer) { cli.PrintTree(w, root) })
	})
}

// clearScreen puts the cursor home and clears a terminal.
const clearScreen = "\x1b[H\x1b[2J"

// watchTree shows the tree every second until ctx ends, which is no error. A
// controller that is away is waited for: its restart is what one watches for.
func (s *session) watchTree(ctx context.Context, o client.TreeOptions) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		root, err := s.client.Tree(ctx, o)
		switch {
		case ctx.Err() != nil:
			return nil
		case client.Temporary(err):
			s.Note("takt: %s", cli.Plain(cli.Message(err)))
		case err != nil:
			return err
		default:
			if err := s.Result(root, func(w io.Writer) { redraw(w, root) }); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// redraw shows the tree on a screen that it clears, or else below the last one.
func redraw(w io.Writer, root api.TreeNode) {
	if cli.Terminal(w) {
		fmt.Fprint(w, clearScreen)
	}
	fmt.Fprintln(w, time.Now().Format(time.RFC3339))
	cli.PrintTree(w, root)
	if !cli.Terminal(w) {
		fmt.Fprintln(w)
	}
}
