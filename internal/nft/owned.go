package nft

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Image is what a table is to hold, as a value.
type Image[I any] interface {
	comparable
	// Permanent is the layout. For an image of another layout the table is replaced.
	Permanent() *Layout
	// From returns the change from an older image of this layout; from an empty table if there is none.
	From(old I) Change
	// Adopt returns the change from the content of a table of this layout, which may be another process's: the image may
	// take over what does not matter to it. It returns ErrOther if the table must be replaced.
	Adopt(is *Content) (Change, error)
}

// Config is what an Owned needs. Its functions are called under the lock.
type Config[I Image[I]] struct {
	Log *slog.Logger
	Table
	// Image makes what the table is to hold, given what it holds, if that is known. The zero image means no table.
	Image func(old I) I
	// Refused notes what the kernel refused of an image, and reports whether there is an image without that; it may be nil.
	Refused func(want I, by *Refusal) bool
	// Again forgets what was refused. It is called some time after, ever less often.
	Again func()
	// Done is called when the table holds an image; it may be nil.
	Done func(I)
	// Changed is called when the table fails or works again; it may be nil.
	Changed func()
	Timers
}

// Timers of an Owned; a zero field means its default.
type Timers struct {
	// AuditInterval is the time between two comparisons of the table's whole content with the image, if nobody changes it.
	AuditInterval time.Duration
	// RepairDelay is the time from damage by others to its repair.
	RepairDelay time.Duration
	// RetryInterval is the first wait after the kernel has refused a transaction, the shortest between two repairs, and what
	// packets in flight have to pass by elements that go later.
	RetryInterval time.Duration
}

// Owned is a table that one process keeps: Apply makes it hold an image, and Run repairs what others change. A process takes
// over the table of its predecessor. It guards what the functions of its Config use.
type Owned[I Image[I]] struct {
	sync.Mutex
	Config[I]
	repairs atomic.Uint64
	// worst is the most severe damage that Run has not handled; wake wakes Run.
	worst atomic.Int32
	wake  chan struct{}

	conn Conn
	// Transact sends a transaction to the kernel.
	Transact func(*Batch) error
	// on: Apply was called, and Remove was not.
	on bool
	// actual is the known content of the table of a handle; the zero image while it is unknown, or there is none.
	actual I
	handle uint64
	// distrusted: the table must not be adopted. absent: there is none.
	distrusted, absent bool
	// layout of the table.
	layout *Layout
	// later are the elements to be deleted by the next transaction.
	later []SetElement
	// generation increases with every Apply and every transaction.
	generation uint64
	// enforced: the table holds the image, and since when that is so, or is not. failure is why not, of the last attempt.
	enforced bool
	since    time.Time
	failure  error
	// partly: the kernel refused a part. retryAt is when it is asked again for what it refused, zero if it refused nothing, and wait
	// the time between the last two attempts.
	partly  bool
	retryAt time.Time
	wait    time.Duration
}

// NewOwned returns an Owned. It does not access the kernel.
func NewOwned[I Image[I]](c Config[I]) *Owned[I] {
	c.AuditInterval, c.RetryInterval = cmp.Or(c.AuditInterval, 10*time.Minute), cmp.Or(c.RetryInterval, 100*time.Millisecond)
	o := &Owned[I]{Config: c, wake: make(chan struct{}, 1), since: time.Now()}
	o.Transact = o.conn.Commit
	return o
}

// Apply makes the table hold the image. On an error it holds what it held, and Run retries.
func (o *Owned[I]) Apply() error {
	o.on = true
	o.generation++
	if o.failure != nil {
		o.wait = 0 // the kernel may take this one
	}
	due := o.retryAt
	err := o.apply()
	if o.retryAt != due {
		o.kick()
	}
	return err
}

func (o *Owned[I]) apply() error {
	failed := o.failure != nil
	if o.failure = o.put(); o.failure != nil {
		o.failure = fmt.Errorf("set table %s: %w", o.Name, o.failure)
		o.postpone()
	}
	works := o.failure == nil
	if works != o.enforced {
		o.enforced, o.since = works, time.Now()
	} else if works != failed {
		return o.failure
	}
	if works {
		o.Log.Info("table in force", "table", o.Name)
	} else {
		o.Log.Error("the kernel refuses the table", "table", o.Name, "error", o.failure)
	}
	if o.Changed != nil {
		o.Changed()
	}
	return o.failure
}

// maxRefusals bounds how often one image is asked for, each time without the parts that were refused.
const maxRefusals = 3

// errPartly: the kernel refused a transaction for a part that the table can do without.
var errPartly = errors.New("the kernel refuses a part of the table")

// put is apply without its bookkeeping, and without the parts that the kernel refuses.
func (o *Owned[I]) put() error {
	var none I
	want := o.Image(o.actual)
	for range maxRefusals + 1 {
		if want == none {
			return o.clear()
		}
		err := o.reconcile(want)
		if err == nil && o.Done != nil {
			o.Done(want)
		}
		if !errors.Is(err, errPartly) {
			return err
		}
		o.partly = true
		o.postpone()
		want = o.Image(o.actual)
	}
	return errPartly
}

// reconcile makes the kernel's table hold an image.
func (o *Owned[I]) reconcile(want I) error {
	var none I
	if o.actual != none {
		if o.layout.signature != want.Permanent().signature {
			return o.replace(want)
		}
		err := o.change(want, want.From(o.actual))
		if err == nil || errors.Is(err, errPartly) {
			return err
		}
		o.actual = none // the table differs from it
	}
	if !o.distrusted {
		if err := o.adopt(want); err == nil || errors.Is(err, errPartly) {
			return err
		}
	}
	return o.replace(want)
}

// adopt takes over the existing table if it has the layout that this process would make, and corrects its elements in one
// transaction.
func (o *Owned[I]) adopt(want I) error {
	c, err := read(want)
	if err == nil {
		err = o.takeOver(want, c)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, errPartly) {
		o.Log.Info("table is replaced", "table", o.Name, "reason", err)
	}
	return err
}

// read returns the change from the existing table to an image.
func read[I Image[I]](want I) (c Change, err error) {
	is, err := want.Permanent().Read()
	if err != nil {
		return c, err
	}
	return want.Adopt(is)
}

// takeOver makes the existing table hold an image by a change.
func (o *Owned[I]) takeOver(want I, c Change) error {
	o.layout, o.later = want.Permanent(), nil
	if err := o.change(want, c); err != nil {
		return err
	}
	o.record(want)
	return nil
}

// change applies a change that makes the table hold an image, and deletes what was to go later.
func (o *Owned[I]) change(want I, c Change) error {
	if c.empty() {
		o.later = append(o.later, c.Later...)
	} else {
		c.Remove = append(c.Remove, o.later...)
		b := o.layout.Batch()
		c.write(b, o.layout)
		if err := o.send(want, b); err != nil {
			return err
		}
		o.later = c.Later
		o.Log.Debug("table changed", "table", o.Name, "added", len(c.Add), "removed", len(c.Remove)+len(c.Later))
	}
	if o.actual = want; len(o.later) > 0 {
		o.kick()
	}
	return nil
}

// send sends a transaction for an image.
func (o *Owned[I]) send(want I, b *Batch) error {
	o.generation++
	err := o.Transact(b)
	var by *Refusal
	var none I
	if o.Refused != nil && want != none && errors.As(err, &by) && o.Refused(want, by) {
		return fmt.Errorf("%w: %w", errPartly, err)
	}
	return err
}

// replace replaces the table in one transaction, so that packets see the old or the new table. It keeps base chains and
// interval sets, and exchanges their rules and elements: the kernel calls a new base chain ahead of the old one, and
// during the commit a packet between the two would meet the rules of neither. The elements of a new interval set become
// visible a little later than the rules that use it.
func (o *Owned[I]) replace(want I) (err error) {
	var none I
	o.layout, o.later, o.actual = want.Permanent(), nil, none
	whole := want.From(none)
	for _, inPlace := range []bool{true, false} {
		b := o.layout.Batch()
		if !inPlace {
			b.Remove()
		}
		b.Create()
		if inPlace && !o.layout.clear(b) {
			continue
		}
		o.layout.Build(b)
		whole.write(b, o.layout)
		if err = o.send(want, b); err == nil {
			o.record(want)
		}
		if err == nil || errors.Is(err, errPartly) {
			return err
		}
	}
	return err
}

// clear deletes the content of the existing table. It keeps the wanted base chains and the interval sets, but not
// their rules and elements. It returns false if the table cannot be listed.
func (l *Layout) clear(b *Batch) bool {
	is, err := l.Outline()
	if err != nil {
		return false
	}
	b.Flush()
	for _, name := range is.Sets {
		if l.Set(name).Intervals() {
			b.FlushSet(name)
		} else {
			b.DeleteSet(name)
		}
	}
	for name := range is.Chains {
		if !slices.ContainsFunc(l.Chains, func(c Chain) bool { return c.Name == name && c.Kind != "" }) {
			b.DeleteChain(name)
		}
	}
	return true
}

// record notes the content of the kernel's table, which may be a new one.
func (o *Owned[I]) record(img I) {
	o.actual, o.distrusted, o.absent = img, false, false
	o.handle, _ = o.layout.Handle()
}

// clear deletes the table.
func (o *Owned[I]) clear() error {
	var none I
	if o.absent {
		return nil
	}
	b := o.Batch()
	b.Remove()
	err := o.send(none, b)
	o.actual, o.later, o.absent = none, nil, err == nil
	return err
}

// Remove deletes the table. A concurrent Run does not restore it.
func (o *Owned[I]) Remove() error {
	o.Lock()
	defer o.Unlock()
	o.absent = false
	err := o.clear()
	o.on, o.absent, o.failure, o.partly, o.retryAt = false, false, nil, false, time.Time{}
	o.enforced, o.since = false, time.Now()
	return errors.Join(err, o.conn.Close())
}

// Enforced reports whether the table holds the image of the last Apply, and the time of the last change of this.
func (o *Owned[I]) Enforced() (ok bool, since time.Time) { return o.enforced, o.since }

// Failure is why the table does not hold the image of the last Apply.
func (o *Owned[I]) Failure() error { return o.failure }

// Settled reports whether Apply would only repeat itself if nothing has changed.
func (o *Owned[I]) Settled() bool {
	var none I
	return o.on && (o.failure != nil || o.absent || o.actual != none)
}

// Actual returns what the table is known to hold, and its layout.
func (o *Owned[I]) Actual() (img I, l *Layout) { return o.actual, o.layout }

// Repairs counts the repairs of what others changed.
func (o *Owned[I]) Repairs() uint64 { return o.repairs.Load() }
