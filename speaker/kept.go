package main

import "context"

// kept is what this node keeps in its kernel, or keeps removed if it is off.
type kept struct {
	table interface {
		Run(context.Context) error
		Remove() error
	}
	// on: if not, what an earlier run left is removed; removed: that is done.
	on, removed bool
}

// run repairs it until ctx ends.
func (k *kept) run(ctx context.Context) error {
	if !k.on {
		<-ctx.Done()
		return nil
	}
	return k.table.Run(ctx)
}

// remove removes it from the kernel.
func (k *kept) remove() error {
	if k.removed {
		return nil
	}
	if err := k.table.Remove(); err != nil {
		return err
	}
	k.removed = !k.on
	return nil
}
