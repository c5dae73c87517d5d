package main

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/http/api"
	"takt/http/client"
)

func newTreeCommand(env environment) *cobra.Command {
	r := remote{env: env}
	var all bool
	cmd := &cobra.Command{
		Use:   "tree [PATH]",
		Short: "Show the controller's supervision tree",
		Long: `Show the controller's supervision tree, or the part of it at PATH, such as
repo/pool. Needs the admin key in TAKT_ADMIN_KEY.`,
		Args: arguments(cobra.MaximumNArgs(1)),
	}
	cmd.Flags().BoolVar(&all, "all", false, "list the children of dynamic supervisors too")
	return r.command(cmd, func(ctx context.Context, s *session, args []string) error {
		o := client.TreeOptions{All: all}
		if len(args) == 1 {
			o.Path = strings.Trim(args[0], "/")
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
