# Two commands set everything up: `make demo` and `make test`. Both install what is missing.
# Everything slow is kept outside the checkout, in $(KDELTA_CACHE).

CARGO ?= cargo
export KDELTA_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/kdelta
KDELTA = target/release/kdelta
INIT = guest/target/x86_64-unknown-linux-gnu/guest/kdelta-init

.PHONY: demo test packages build guest check clean

## The main job, end to end: a real kernel, a patch, a verdict.
demo:
	@scripts/timed "packages" $(MAKE) --no-print-directory packages
	@scripts/timed "compile kdelta" $(MAKE) --no-print-directory build
	@scripts/demo $(KDELTA)

## Everything that CI checks.
test: packages check
	scripts/e2e target/debug/kdelta

packages:
	@scripts/packages

build: guest
	$(CARGO) build --release --locked --package kdelta

## The static init. RUSTFLAGS would override guest/.cargo/config.toml.
guest:
	cd guest && env -u RUSTFLAGS $(CARGO) build --locked --profile guest --package kdelta-init

check: guest
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) build --workspace --locked
	$(CARGO) test --workspace --locked
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked --quiet

clean:
	$(CARGO) clean
	rm -rf guest/target kdelta-runs
