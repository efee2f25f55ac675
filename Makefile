# `make` lists the commands. Each does all the set-up it needs, once, in .venv.

PYTHON ?= python3
CORPUS ?= grammar
JOBS   ?= 2

# What pip is asked for as torch; `make TORCH= ...` leaves torch to you. The last choice is remembered.
TORCH  ?= $(shell cat .venv/.torch 2>/dev/null || echo torch==2.13.0)

VENV   := .venv
RUN    := $(VENV)/bin/python
READY  := $(VENV)/.ready
BOOK   := $(VENV)/bin/jupyter-book build . -W -n --all --keep-going

.PHONY: help setup reproduce test book check export execute reference lab again

help:
	@echo "make reproduce                  train, translate, score, fill the tables, render your own book"
	@echo "make reproduce CORPUS=multi30k  the same on real text; CORPUS=folder:PATH on yours"
	@echo "make test                       the tests, the chapters, the export and the book"
	@echo "make book                       render the book from its stored outputs, run nothing"
	@echo "make lab                        open the chapters in JupyterLab"
	@echo ""
	@echo "For those who edit chapters (CONTRIBUTING.md):"
	@echo "make export                     write transformer/ from the chapters"
	@echo "make execute                    export, run the chapters, store their outputs"
	@echo "make execute CHAPTERS='3-2-attention index'"
	@echo "make reference FROM=data/runs/X   make a run of yours a reference run, execute all chapters"
	@echo "make check                      the quick checks alone: export drift and ruff"
	@echo ""
	@echo "make TORCH= ...                 leave the torch alone that .venv holds already"
	@echo "make PYTHON=python3.12 ...      another Python for .venv: 3.11, 3.12 or 3.13"

reproduce: $(READY)
	$(RUN) -m transformer reproduce --corpus "$(CORPUS)" $(ARGS)

test: check book
	CUDA_VISIBLE_DEVICES= $(RUN) -m pytest --nbval -n $(JOBS) --dist loadfile $(ARGS)

check: $(READY)
	$(RUN) chapters/_book/export.py --check
	$(RUN) -m ruff check chapters tests transformer

book: $(READY)
	$(BOOK)

export: $(READY)
	$(RUN) chapters/_book/export.py

execute: export
	$(RUN) chapters/_book/execute.py $(CHAPTERS)

# A run of yours becomes a reference run, and every chapter is run again with it.
reference: $(READY)
	@test -n "$(FROM)" || { echo "name the run's folder: make reference FROM=data/runs/NAME"; exit 2; }
	$(RUN) -m transformer tables --store "$(FROM)"
	$(MAKE) execute
	$(RUN) -m transformer tables --readme

lab: $(READY)
	$(RUN) -m jupyter lab chapters

setup: $(READY)
	@echo "$(VENV) is ready"

# Set-up is repeated when a requirement changes, or when another torch is asked for.
ifneq ($(shell cat $(VENV)/.torch 2>/dev/null),$(TORCH))
$(READY): again
endif

define CHECK_PYTHON
import sys
v = sys.version_info
if not (3, 11) <= v[:2] <= (3, 13):
    sys.exit(f"$(PYTHON) is Python {v[0]}.{v[1]}; this book needs 3.11, 3.12 or 3.13: make PYTHON=python3.12 ...")
endef
export CHECK_PYTHON

# A torch that sees a GPU is the machine's own business: .venv then uses it as it is, also where
# $(PYTHON) is itself an environment, whose packages --system-site-packages would not show.
HAS_CUDA := import sys, torch; sys.exit(not torch.cuda.is_available())
PACKAGES := import sysconfig; print(sysconfig.get_path('purelib'))

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c "$$CHECK_PYTHON"
	@test -x $(RUN) || \
	  if $(PYTHON) -c "$(HAS_CUDA)" 2>/dev/null; \
	  then echo "using this machine's own torch" && \
	    $(PYTHON) -m venv --system-site-packages $(VENV) && \
	    $(PYTHON) -c "$(PACKAGES)" > "$$($(RUN) -c "$(PACKAGES)")/machine.pth"; \
	  else $(PYTHON) -m venv $(VENV); fi
	@test -z "$(TORCH)" || $(RUN) -c "$(HAS_CUDA)" 2>/dev/null || $(RUN) -m pip install "$(TORCH)"
	$(RUN) -m pip install -c constraints.txt -e ".[test]"
	@printf '%s\n' "$(TORCH)" > $(VENV)/.torch
	@touch $@
