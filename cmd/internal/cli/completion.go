package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"takt/http/client"
)

// completionLimit is how long a shell waits for the controller.
const completionLimit = 2 * time.Second

// Completion has the shell complete a command's first argument with what list finds: names, each
// with a description after a tab.
func Completion(env Environment, list func(ctx context.Context, c *client.Client) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		const only = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
		r := Remote{Env: env}
		for name, to := range map[string]*string{"url": &r.URL, "api-key": &r.APIKey, "api-key-file": &r.APIKeyFile, "ca-file": &r.CAFile} {
			*to, _ = cmd.Flags().GetString(name)
		}
		s, err := r.Open(cmd)
		if err != nil || len(args) > 0 {
			return nil, only
		}
		defer s.Client.CloseIdle()
		ctx, cancel := context.WithTimeout(cmd.Context(), completionLimit)
		defer cancel()
		found, _ := list(ctx, s.Client) // a shell has no place for an error
		return found, only
	}
}
