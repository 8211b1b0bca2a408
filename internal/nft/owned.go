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

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Image is the desired content of a table, as a value.
type Image[I any] interface {
	comparable
	// Permanent returns the layout. Between images of different layouts the table is replaced.
	Permanent() *Layout
	// From returns the change from an older image of this layout. For the zero image it returns the change from the
	// layout without additions.
	From(old I) Change
}

// Config configures an Owned. Its functions are called under the Owned's lock.
type Config[I Image[I]] struct {
	Log *slog.Logger
	Table
	// Image returns the desired content. The argument is the actual content; the zero image if that is unknown. The
	// zero image as the result means that no table is wanted.
	Image func(actual I) I
	// Observed is called with the kernel's content of the table before Image is called; it may be nil.
	Observed func(*Content)
	// Applied is called when the table is equal to an image; it may be nil.
	Applied func(I)
	// Changed is called when the table begins to fail or works again; it may be nil.
	Changed func()
	// AuditInterval is the time between two comparisons of the whole table with the image, if no other program changes
	// the table; by default ten minutes.
	AuditInterval time.Duration
}

// retryInterval is the first wait after the kernel has refused a transaction, and the shortest time between two audits.
const retryInterval = 100 * time.Millisecond

// Owned is a table that one process keeps. Apply makes it equal to an image, and Run repairs what other programs
// change. There is one kind of damage: the table differs from the image. There is one repair: one transaction replaces
// the whole table. The same happens to the table of a predecessor if it differs.
//
// The caller holds the lock for Apply and Enforced. The lock also guards what the functions of the Config use.
//
// It has many fields, because one attempt changes them together: what the table has, whether that is the image, and
// when to try again.
type Owned[I Image[I]] struct {
	sync.Mutex
	Config[I]
	repairs atomic.Uint64
	// wake makes Run audit the table.
	wake lb.Signal

	// none is the zero image.
	none I
	conn Conn
	// Transact sends a transaction to the kernel.
	Transact func(*Batch) error
	// active reports whether Apply was called, and Remove was not called since.
	active bool
	// adoptionTried reports whether the table that a predecessor left was compared with the image.
	adoptionTried bool
	// actual is the known content of the table. It is the zero image while the content is unknown or the table absent.
	actual I
	// absent reports whether there is no table.
	absent bool
	// generation counts the attempts to change the table.
	generation uint64
	// enforced reports whether the table is equal to the image, and since is the time when enforced changed.
	enforced bool
	since    time.Time
	// failure is the error of the last attempt.
	failure error
	// retryAt is the time of the next attempt after a failure, and wait the pause before it.
	retryAt time.Time
	wait    time.Duration
}

// NewOwned returns an Owned. It does not access the kernel.
func NewOwned[I Image[I]](c Config[I]) *Owned[I] {
	c.AuditInterval = cmp.Or(c.AuditInterval, 10*time.Minute)
	o := &Owned[I]{
		Config: c,
		wake:   lb.NewSignal(),
		since:  time.Now(),
	}
	o.Transact = o.conn.Commit
	return o
}

// Apply makes the table equal to the image. The argument reports whether the image is the same as at the last Apply:
// then there may be nothing to do. On an error the table keeps its content, and Run retries.
func (o *Owned[I]) Apply(same bool) error {
	contentKnown := o.absent || o.actual != o.none
	if same && o.active && (o.failure != nil || contentKnown) {
		return o.failure
	}

	o.active = true
	o.wait = 0 // the kernel may accept the new image at once
	return o.apply()
}

// maxWait is the longest pause before the next attempt after a failure. One attempt may take as long as a transaction
// of the whole table.
const maxWait = 5 * time.Minute

// apply makes one attempt. It schedules the next one on a failure, and reports when the table begins to fail or works
// again.
func (o *Owned[I]) apply() error {
	failedBefore := o.failure != nil
	o.generation++
	o.failure = o.converge()
	if o.failure != nil {
		o.failure = fmt.Errorf("set table %s: %w", o.Name, o.failure)
		o.wait = min(max(2*o.wait, retryInterval), maxWait)
		o.retryAt = time.Now().Add(o.wait)
		o.wake.Kick()
	}

	works := o.failure == nil
	if works != o.enforced {
		o.enforced = works
		o.since = time.Now()
	} else if works != failedBefore {
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

// converge makes the kernel's table equal to the image: by a change of the known content, by the adoption of a
// predecessor's table, or by a replacement of the whole table.
func (o *Owned[I]) converge() error {
	want := o.Image(o.actual)
	if want == o.none {
		return o.deleteTable()
	}

	isKnown := o.actual != o.none
	if isKnown && o.actual.Permanent().signature == want.Permanent().signature {
		err := o.change(want)
		if err == nil {
			return nil
		}

		o.actual = o.none // another program may have changed the table
	}

	if !o.adoptionTried {
		o.adoptionTried = true
		found, err := want.Permanent().Read()
		want, err = o.adopt(want, found, err)
		if err == nil {
			return nil
		}

		if !errors.Is(err, os.ErrNotExist) {
			o.Log.Info("table is replaced", "table", o.Name, "reason", err)
		}
	}

	return o.replace(want)
}

// adopt takes over the table if its content is equal to the image. It takes the result of Layout.Read, and returns the
// image, which Observed may have changed. The error is the reason why the table cannot be adopted.
func (o *Owned[I]) adopt(want I, found *Content, err error) (I, error) {
	if err != nil {
		return want, err
	}

	if o.Observed != nil {
		o.Observed(found)
		want = o.Image(o.actual)
	}

	if !found.equals(want.Permanent(), want.From(o.none)) {
		return want, ErrOther
	}

	o.record(want)
	return want, nil
}

// record stores the content that the table has after an adoption or a transaction.
func (o *Owned[I]) record(img I) {
	o.actual = img
	o.absent = false
	if o.Applied != nil {
		o.Applied(img)
	}
}

// change changes the table from its known content to an image.
func (o *Owned[I]) change(want I) error {
	c := want.From(o.actual)
	if !c.empty() {
		b := want.Permanent().Batch()
		c.write(b, want.Permanent())
		if err := o.Transact(b); err != nil {
			return err
		}

		o.Log.Debug(
			"table changed",
			"table", o.Name,
			"added", len(c.Add),
			"removed", len(c.Remove),
		)
	}

	o.record(want)
	return nil
}

// replace replaces the table in one transaction, so that packets meet the old rules or the new ones.
//
// It first tries to keep base chains and interval sets, and to exchange their rules and elements. Otherwise the kernel
// calls a new base chain before the old one, and during the commit a packet between the two would meet the rules of
// neither. The elements of a new interval set become visible a little later than the rules that use it.
func (o *Owned[I]) replace(want I) (err error) {
	o.actual = o.none
	layout := want.Permanent()
	additions := want.From(o.none)

	for _, inPlace := range []bool{true, false} {
		b := layout.Batch()
		if !inPlace {
			b.Remove()
		}

		b.Create(0)
		if inPlace && !layout.clearTable(b) {
			continue
		}

		layout.Build(b)
		additions.write(b, layout)

		err = o.Transact(b)
		if err == nil {
			o.record(want)
			return nil
		}
	}

	return err
}

// clearTable deletes the content of the existing table. It empties the base chains and the interval sets of the layout,
// and keeps them. It returns false if the table cannot be listed.
func (l *Layout) clearTable(b *Batch) bool {
	found, err := l.Outline()
	if err != nil {
		return false
	}

	b.Flush()
	for _, name := range found.Sets {
		if l.Set(name).Intervals() {
			b.FlushSet(name)
		} else {
			b.DeleteSet(name)
		}
	}

	for name := range found.Chains {
		isBaseChain := func(c Chain) bool { return c.Name == name && c.Kind != "" }
		if !slices.ContainsFunc(l.Chains, isBaseChain) {
			b.DeleteChain(name)
		}
	}

	return true
}

// deleteTable deletes the table, unless it is known to be absent.
func (o *Owned[I]) deleteTable() error {
	if o.absent {
		return nil
	}

	b := o.Batch()
	b.Remove()
	err := o.Transact(b)
	o.actual = o.none
	o.absent = err == nil
	return err
}

// Remove deletes the table. A concurrent Run does not restore it; the next Apply does.
func (o *Owned[I]) Remove() error {
	o.Lock()
	defer o.Unlock()
	o.absent = false
	err := o.deleteTable()
	o.active = false
	o.absent = false
	o.enforced = false
	o.since = time.Now()
	o.failure = nil
	if err = errors.Join(err, o.conn.Close()); err != nil {
		return fmt.Errorf("remove table %s: %w", o.Name, err)
	}

	return nil
}

// Enforced reports whether the table is equal to the image of the last Apply, and since when. The caller holds the
// lock.
func (o *Owned[I]) Enforced() (ok bool, since time.Time) {
	return o.enforced, o.since
}

// InForce is like Enforced but takes the lock.
func (o *Owned[I]) InForce() bool {
	o.Lock()
	defer o.Unlock()
	return o.enforced
}

// Failure returns the error of the last attempt to make the table equal to the image; nil if it succeeded.
func (o *Owned[I]) Failure() error {
	o.Lock()
	defer o.Unlock()
	return o.failure
}

// Actual returns the known content of the table; the zero image if it is unknown or there is no table.
func (o *Owned[I]) Actual() I {
	o.Lock()
	defer o.Unlock()
	return o.actual
}

// Repairs returns how often Run or Audit repaired a change of another program.
func (o *Owned[I]) Repairs() uint64 {
	return o.repairs.Load()
}
