package cli

import (
	"context"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"takt/http/api"
	"takt/http/client"
)

// Row makes cmd a command that makes one call and shows the reply. bind adds the flags and the
// arguments that set the call's input; it may be nil. A cmd without Args takes as many arguments
// as bind adds.
func Row[In, Out any](env Environment, cmd *cobra.Command, call Call[In, Out], show View[Out], bind func(in *In, f *Flags)) *cobra.Command {
	var in In
	f := &Flags{FlagSet: cmd.Flags(), Command: cmd}
	if bind != nil {
		bind(&in, f)
	}
	if cmd.Args == nil && f.arguments > 0 {
		cmd.Args = cobra.ExactArgs(f.arguments)
	}
	return Command(env, cmd, func(ctx context.Context, s *Session, _ []string) error {
		for _, check := range f.checks {
			if err := check(); err != nil {
				return err
			}
		}
		reply, err := call(ctx, s, in)
		if err != nil {
			return err
		}
		return show(s, reply)
	})
}

// Group makes cmd the parent of others.
func Group(cmd *cobra.Command, below ...*cobra.Command) *cobra.Command {
	cmd.AddCommand(below...)
	return cmd
}

// Call is what a row asks of the controller.
type Call[In, Out any] func(ctx context.Context, s *Session, in In) (Out, error)

// Ask calls an endpoint that is safe to repeat.
func Ask[In, Out any](e api.Endpoint[In, Out]) Call[In, Out] {
	return Repeat(func(c *client.Client, ctx context.Context, in In) (Out, error) { return client.Call(ctx, c, e, in) })
}

// Order calls an endpoint once, because a repeat would have an effect twice or fail.
func Order[In, Out any](e api.Endpoint[In, Out]) Call[In, Out] {
	return func(ctx context.Context, s *Session, in In) (Out, error) { return client.Call(ctx, s.Client, e, in) }
}

// Repeat calls a method of the client that is safe to repeat, such as one that reads all pages of
// a list.
func Repeat[In, Out any](method func(c *client.Client, ctx context.Context, in In) (Out, error)) Call[In, Out] {
	return func(ctx context.Context, s *Session, in In) (Out, error) {
		return Again(ctx, s, func(ctx context.Context) (Out, error) { return method(s.Client, ctx, in) })
	}
}

// View shows a reply.
type View[Out any] func(s *Session, reply Out) error

// Text shows a reply to people with show.
func Text[Out any](show func(w io.Writer, reply Out)) View[Out] {
	return Part(func(reply Out) Out { return reply }, show)
}

// Part shows only a part of a reply.
func Part[Out, T any](of func(Out) T, show func(w io.Writer, part T)) View[Out] {
	return func(s *Session, reply Out) error { return Show(s, of(reply), nil, show) }
}

// Rows shows a list that a reply has: to people as a table.
func Rows[Out, T any](of func(Out) []T, heading []string, row func(T) []string) View[Out] {
	return Part(of, func(w io.Writer, all []T) { List(w, heading, all, row) })
}

// Says shows people only this text.
func Says[Out any](text string) View[Out] {
	return Text(func(w io.Writer, _ Out) { _, _ = io.WriteString(w, text+"\n") }) // as with any output
}

// Flags are the flags and the arguments of a row.
type Flags struct {
	*pflag.FlagSet
	Command   *cobra.Command
	arguments int
	checks    []func() error
}

// Check has a function called before the call, which fills in the input or refuses it.
func (f *Flags) Check(check func() error) { f.checks = append(f.checks, check) }

// Set is Check for what can't be wrong.
func (f *Flags) Set(set func()) {
	f.Check(func() error {
		set()
		return nil
	})
}

// Reason adds --reason to a command whose change is audited.
func (f *Flags) Reason(to *string) { f.StringVar(to, "reason", "", "why, for the audit") }

// NeedReason is Reason where it has to be given, except if unless, which may be nil, is set.
func (f *Flags) NeedReason(to *string, unless *bool) {
	f.StringVar(to, "reason", "", "why, for the audit (required)")
	f.Check(func() error {
		if unless != nil && *unless {
			return nil
		}
		return NeedReason(*to)
	})
}

// Limit adds --limit to a list.
func (f *Flags) Limit(to *int, usual int) {
	f.IntVarP(to, "limit", "n", usual, "maximum number of results; 0 for all")
}

// Arg has the next argument set a part of the input.
func Arg[T ~string](f *Flags, to *T) {
	i := f.arguments
	f.arguments++
	f.Set(func() { *to = T(f.Arg(i)) })
}

// Given has a flag set a part of the input only if it was given.
func Given[T any](f *Flags, to **T, name string, value *T) {
	f.Set(func() {
		if *to = nil; f.Changed(name) {
			*to = value
		}
	})
}

// Slice adds a flag that takes texts, separated by commas.
func Slice[T ~string](f *Flags, to *[]T, name, usage string) {
	texts := f.StringSlice(name, nil, usage)
	f.Set(func() {
		*to = nil
		for _, text := range *texts {
			*to = append(*to, T(text))
		}
	})
}
